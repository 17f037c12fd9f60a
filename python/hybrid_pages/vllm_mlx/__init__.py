"""``hybrid-pages vllm-mlx``: vllm-mlx's server with this package's prompt cache.

vllm-mlx's scheduler puts requests into batches of mlx-lm. Ours marks each prompt
(``scheduler.Scheduler``), and ``batches.RowBatches`` restores its longest known prefix, cuts the
rest where a state is wanted, and stores what each pass and each answer leaves. mlx-lm 0.31.3 pads
prompts of most hybrids wrongly, so each of these is computed alone; rows are decoded together.
"""
