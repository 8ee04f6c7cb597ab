"""Pure calculators: no web, no database, no files, no clock. Standard library and NumPy only."""
