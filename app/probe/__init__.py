"""The probe: one file that measures a machine with PyTorch alone and imports nothing of this package."""
