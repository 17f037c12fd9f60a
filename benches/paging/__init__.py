"""The parts of gpu_paging.py and gpu_first_hour.py."""
