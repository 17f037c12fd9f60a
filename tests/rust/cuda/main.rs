//! The tests of the CUDA engine, in one binary. What needs a process of its own has a binary of its own.

mod cuda_batches;
mod cuda_model;
mod cuda_order;
mod cuda_pinning;
mod cuda_refusals;
mod cuda_support;
mod cuda_tsan;
mod mock_cuda;
#[path = "../shared/report.rs"]
mod report;
#[path = "../shared/transfer_random.rs"]
mod transfer_random;
#[path = "../shared/transfer_support.rs"]
mod transfer_support;
#[path = "../shared/transfer_tokens.rs"]
mod transfer_tokens;
