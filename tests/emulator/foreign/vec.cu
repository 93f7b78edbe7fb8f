#include <cuda_fp16.h>
#include <cuda_bf16.h>
extern "C" __global__ void vec(const float4* a, float4* b, const __half2* h, __half2* g, const __nv_bfloat162* u, __nv_bfloat162* v, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;
    float4 x = a[i]; x.x += x.w; x.y *= 2; x.z = fmaf(x.x, x.y, x.z); b[i] = x;
    __half2 y = h[i]; g[i] = __hfma2(y, y, __float2half2_rn(0.5f)); 
    u += i; v[i] = __hmul2(*u, __float2bfloat162_rn(1.5f));
}
extern "C" __global__ void transpose(const float* in, float* out, int w, int h) {
    __shared__ float tile[32][33];
    int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8) if (x < w && y + j < h) tile[threadIdx.y + j][threadIdx.x] = in[(y + j) * w + x];
    __syncthreads();
    x = blockIdx.y * 32 + threadIdx.x; y = blockIdx.x * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8) if (x < h && y + j < w) out[(y + j) * h + x] = tile[threadIdx.x][threadIdx.y + j];
}
