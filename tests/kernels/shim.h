// The part of CUDA that csrc/paging.cu needs, for a C++17 compiler and a CPU. The sources stay as they are:
//
//     c++ -std=c++17 -fno-strict-aliasing -include tests/kernels/shim.h -x c++ -c csrc/paging.cu
//
// One other translation unit of the program includes launch.h, declares the kernels, and runs them:
//
//     extern "C" void hybrid_pages_gather(hybrid_pages::Paging);
//     shim::Launch launch;
//     launch.grid = 3;
//     shim::run(hybrid_pages_gather, paging, launch);
//
// Only what the kernels use is here, and no header of the standard library: their sources see none.
#pragma once

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
// Blocks of a launch run one after the other, so one copy is enough. It is not cleared in between:
// as on a device, a block finds there what others have left.
#define __shared__ static

namespace shim {

struct Index {
    unsigned x, y, z;
};

}  // namespace shim

extern __thread shim::Index threadIdx, blockIdx, blockDim, gridDim;

void __syncthreads();
