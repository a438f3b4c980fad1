"""poetc compiles the training of neural networks for small Arm boards."""
