// For factors.py: kernels as anybody writes them, 128 threads a block (matmul: 16 x 16).
extern "C" {
__global__ void vector_add(const float* x, const float* y, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = x[i] + y[i];
}

__global__ void matmul(const float* a, const float* b, float* c, int n, int k) {
  __shared__ float left[16][16], right[16][16];
  int tx = threadIdx.x, ty = threadIdx.y, row = blockIdx.y * 16 + ty, column = blockIdx.x * 16 + tx;
  float total = 0;
  for (int step = 0; step < k; step += 16) {
    left[ty][tx] = a[row * k + step + tx];
    right[ty][tx] = b[(step + ty) * n + column];
    __syncthreads();
    for (int j = 0; j < 16; j++) total += left[ty][j] * right[j][tx];
    __syncthreads();
  }
  c[row * n + column] = total;
}

__global__ void reduction(const int* x, int* out) {
  __shared__ int sums[128];
  int t = threadIdx.x;
  sums[t] = x[blockIdx.x * 128 + t];
  __syncthreads();
  for (int s = 64; s; s >>= 1) {
    if (t < s) sums[t] += sums[t + s];
    __syncthreads();
  }
  if (!t) atomicAdd(out, sums[0]);
}

__global__ void histogram(const int* x, int* bins, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) atomicAdd(bins + x[i], 1);
}

__global__ void shared_histogram(const int* x, int* bins, int n) {
  __shared__ int own[16];
  int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
  if (t < 16) own[t] = 0;
  __syncthreads();
  if (i < n) atomicAdd(own + x[i], 1);
  __syncthreads();
  if (t < 16) atomicAdd(bins + t, own[t]);
}

// Of each block's 128 numbers, by Hillis and Steele.
__global__ void scan(const int* x, int* out) {
  __shared__ int sums[2][128];
  int t = threadIdx.x, i = blockIdx.x * 128 + t, now = 0;
  sums[0][t] = x[i];
  __syncthreads();
  for (int s = 1; s < 128; s *= 2) {
    sums[!now][t] = sums[now][t] + (t < s ? 0 : sums[now][t - s]);
    now = !now;
    __syncthreads();
  }
  out[i] = sums[now][t];
}

// Places in a list, in the order in which they are taken: the atomic's result is used.
__global__ void append(const int* x, int* count, int* list, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n && x[i] & 1) list[atomicAdd(count, 1)] = i;
}

// Stencil whose rows are ordered by a barrier of the whole grid, with acquire and release.
__global__ void rows(int* table, int* arrived, int width, int height) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  for (int row = 1; row < height; row++) {
    table[row * width + i] = table[(row - 1) * width + width - 1 - i] + 1;
    __syncthreads();
    if (!threadIdx.x) {
      int seen, one = 1;
      asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(arrived), "r"(one) : "memory");
      do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(arrived) : "memory");
      while (seen < row * (int)gridDim.x);
    }
    __syncthreads();
  }
}
}
