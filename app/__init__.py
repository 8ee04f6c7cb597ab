"""Bytebound: performance bounds and measurements for machine-learning workloads."""

__version__ = "0.1.0"
