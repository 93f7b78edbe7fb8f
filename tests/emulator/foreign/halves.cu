// fp16's own maths, whose headers are full of inline assembly; integers side by side; the n-th set bit.
#include <cuda_fp16.h>
extern "C" __global__ void halves(const half2* h, float* out, const unsigned* x, unsigned* u) {
    int i = threadIdx.x;
    half a = __low2half(h[i]), b = __high2half(h[i]);
    float* o = out + 8 * i;
    o[0] = __half2float(hexp2(a)); o[1] = __half2float(hexp(a)); o[2] = __half2float(hlog(__habs(a))); o[3] = __half2float(hsin(a));
    o[4] = __half2float(hsqrt(__habs(b))); o[5] = __half2float(hrcp(b)); o[6] = __low2float(h2tanh_approx(h[i])); o[7] = __high2float(h2exp2(h[i]));
    unsigned* v = u + 8 * i;
    unsigned p = x[i], q = x[i + 1];
    v[0] = __hgt2_mask(h[i], h[i + 1]); v[1] = __vabsdiffu4(p, q); v[2] = __vsads4(p, q); v[3] = __vmaxs2(p, q); v[4] = __viaddmax_s16x2(p, q, 0x00070007);
    v[5] = __fns(p, 0, 3); v[6] = __fns(p, 31, -2); v[7] = __vaddss4(p, q);
}
