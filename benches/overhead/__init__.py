"""The parts of engine_overhead.py."""
