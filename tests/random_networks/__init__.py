"""Random PyTorch networks, trained by poetc from their ONNX files and by PyTorch itself, step by step.

`recipe`, `training` and `judging` need no PyTorch; `blocks`, `attention`, `networks` and `reference` do.
"""
