"""Parts of `resume.py`: tokens that engines compute again."""
