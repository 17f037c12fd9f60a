"""The parts of gpu_paging.py."""
