"""Dimensions to rows of the cost table: one module a kind of block."""
