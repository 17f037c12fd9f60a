"""A model's layers, and the sizes of its pages and checkpoints in vLLM, from its config.json alone.

Nothing here imports torch, transformers or vLLM. Each formula names the file of vLLM 0.33 that it
restates; ``tests/scheduler/test_models.py`` compares them with that code, and
``tests/engine/test_plan.py`` with what real engines report.
"""
