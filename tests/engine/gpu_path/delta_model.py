"""Kimi-Linear as vLLM loads it, on stand-ins for the kernels of its layers."""

from vllm.model_executor.layers.mamba.gdn import kimi_gdn_linear_attn as layers
from vllm.models.kimi_k3.amd.linear import KimiLinearForCausalLM as KimiLinearForCausalLM
from vllm.models.kimi_k3.nvidia.ops.third_party import kda

from gpu_path import delta

layers.causal_conv1d_fn = delta.convolve
layers.causal_conv1d_update = delta.update_convolution
layers.gather_initial_states = delta.gather_initial_states
kda.chunk_kda_with_fused_gate = delta.prefill
kda.fused_recurrent_kda_packed_decode = delta.decode
