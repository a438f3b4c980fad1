"""Files that commands read and write: ONNX, adapters, GGUF."""
