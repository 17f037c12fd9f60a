"""The layers of a model and the sizes of its pages and checkpoints in vLLM, by its config.json.

Nothing here imports torch, transformers or vLLM. Each formula names the file of vLLM 0.33 that it
restates; ``tests/scheduler/test_models.py`` compares them with that code, and
``tests/engine/test_plan.py`` with what real engines report.
"""
