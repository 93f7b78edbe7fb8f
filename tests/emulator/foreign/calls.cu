struct Pair { float a; int b; };
__device__ __noinline__ int fib(int n) { int a = 0, b = 1; while (n--) { int t = a + b; a = b; b = t; } return a; }
__device__ __noinline__ Pair make(float x, int y) { Pair p; p.a = x * 2; p.b = y + 1; return p; }
__device__ __noinline__ void swap(int* a, int* b) { int t = *a; *a = *b; *b = t; }
__device__ float table[4] = {1.5f, 2.5f, -3.f, 4.f};
__constant__ int weights[5] = {3, 1, 4, 1, 5};
__device__ unsigned counter;
typedef float (*Fn)(float);
__device__ __noinline__ float twice(float x) { return 2 * x; }
__device__ __noinline__ float square(float x) { return x * x; }
__device__ Fn fns[2] = {twice, square};
extern "C" __global__ void calls(int* out, float* fout, int n) {
    int i = threadIdx.x;
    int x = i, y = 100 + i;
    swap(&x, &y);
    Pair p = make(0.5f * i, i);
    out[i] = fib(i % 10) + x * 1000 + y + p.b + weights[i % 5];
    fout[i] = p.a + table[i % 4];
    atomicInc(&counter, 1000000);
    int local[16];
    for (int j = 0; j < 16; ++j) local[j] = (j * i) ^ n;
    int s = 0;
    for (int j = 0; j < n; ++j) s += local[(j * 7 + i) & 15];
    out[i + blockDim.x] = s;
    switch (out[i] % 8) { case 0: s = 5; break; case 1: s *= 3; break; case 2: s -= 7; break; case 3: s ^= 0x55; break; case 4: s = ~s; break; case 5: s <<= 2; break; case 6: s += i; break; default: s = -s; }
    out[i + 2 * blockDim.x] = s;
}
extern "C" __global__ void indirect(float* out) { out[threadIdx.x] = fns[threadIdx.x % 2](threadIdx.x + 0.5f); }
