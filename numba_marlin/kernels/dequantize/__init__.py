"""From packed codes to 16-bit floats: device functions that several kernels share."""
