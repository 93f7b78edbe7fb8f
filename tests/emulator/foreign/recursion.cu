// Functions that call themselves, through pointers and virtual tables, with local variables whose
// address the callee gets.
__device__ __noinline__ int fibonacci(int n) {
  return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}
__device__ __noinline__ int ackermann(int m, int n) {
  if (m == 0) return n + 1;
  return n == 0 ? ackermann(m - 1, 1) : ackermann(m - 1, ackermann(m, n - 1));
}
extern "C" __global__ void recursive(int* out) {
  int t = threadIdx.x;
  out[2 * t] = fibonacci(t % 8);
  out[2 * t + 1] = ackermann(t % 3, t % 4);
}

__device__ __noinline__ void total(const int* numbers, int count, int* result) {
  if (count == 0) return;
  int kept[2] = {numbers[count - 1], 0};
  total(numbers, count - 1, kept + 1);
  *result = kept[0] + kept[1];
}
extern "C" __global__ void pointers(int* out) {
  int numbers[6], result = 0;
  for (int i = 0; i < 6; i++) numbers[i] = i * threadIdx.x;
  total(numbers, 6, &result);
  out[threadIdx.x] = result;
}

typedef int (*Function)(int, int);
__device__ int add(int a, int b) { return a + b; }
__device__ int multiply(int a, int b) { return a * b; }
__device__ int subtract(int a, int b) { return a - b; }
__device__ Function table[3] = {add, multiply, subtract};
struct Base {
  __device__ virtual int of(int x) = 0;
};
struct Plus : Base {
  int more;
  __device__ Plus(int more) : more(more) {}
  __device__ int of(int x) override { return x + more; }
};
struct Times : Base {
  __device__ int of(int x) override { return 3 * x; }
};
extern "C" __global__ void chosen(int* out, int shift) {
  int t = threadIdx.x;
  Plus plus(5);
  Times times;
  Base* base = t % 2 ? (Base*)&plus : (Base*)&times;
  out[t] = table[(t + shift) % 3](t, 7) + 1000 * base->of(t);
}
