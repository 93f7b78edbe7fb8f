"""Pages of views that show a profile, the state of a device, and packed words."""
