"""Benchmark files of other tools, read into runs. `registry.parse_upload` is the way in."""
