// Conversions of 4 to 8 bits: instructions for sm_100, the headers' own integer arithmetic before.
#include <cuda_fp4.h>
#include <cuda_fp6.h>
#include <cuda_fp8.h>

extern "C" __global__ void small_floats(const float *x, unsigned *y, int n) {
  int i = threadIdx.x;
  float2 v = make_float2(x[i], x[(i * 7 + 3) % n]);
  unsigned *to = y + 10 * i;
  to[0] = __nv_cvt_float2_to_fp4x2(v, __NV_E2M1, cudaRoundNearest);
  to[1] = __nv_cvt_float2_to_fp6x2(v, __NV_E2M3, cudaRoundNearest);
  to[2] = __nv_cvt_float2_to_fp6x2(v, __NV_E3M2, cudaRoundNearest);
  to[3] = __nv_cvt_float2_to_fp8x2(v, __NV_SATFINITE, __NV_E4M3);
  to[4] = __nv_cvt_float2_to_fp8x2(v, __NV_SATFINITE, __NV_E5M2);
  to[5] = __nv_cvt_float2_to_e8m0x2(v, __NV_SATFINITE, cudaRoundPosInf);
  to[6] = __nv_cvt_float2_to_e8m0x2(v, __NV_NOSAT, cudaRoundZero);
  __half2_raw h = __nv_cvt_fp4x2_to_halfraw2((unsigned char)i, __NV_E2M1);
  to[7] = h.x | h.y << 16;
  h = __nv_cvt_fp6x2_to_halfraw2((unsigned short)(i & 63) * 257, __NV_E3M2);
  to[8] = h.x | h.y << 16;
  h = __nv_cvt_fp8x2_to_halfraw2((unsigned short)i * 257, __NV_E4M3);
  to[9] = h.x | h.y << 16;
}
