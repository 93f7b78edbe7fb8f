"""What GPUs are: devices and their sizes, architectures that code is compiled for."""
