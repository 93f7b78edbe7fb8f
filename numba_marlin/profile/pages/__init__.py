"""What a profile, a device and a packed word look like, as pages of views."""
