// Kernels whose facts ptxas tells by itself (`facts.py`): nothing special, static and dynamic shared memory, spills.
extern "C" __global__ void add(float* x, int n, float more) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] += more;
}

extern "C" __global__ void shared(float* x) {
    __shared__ float own[64];
    extern __shared__ float more[];
    own[threadIdx.x & 63] = x[threadIdx.x];
    more[threadIdx.x] = own[0];
    __syncthreads();
    x[threadIdx.x] = own[(threadIdx.x + 1) & 63] + more[(threadIdx.x + 1) & 31];
}

extern "C" __global__ void __launch_bounds__(1024) spilling(float* x, int n) {
    float a[64];
#pragma unroll
    for (int i = 0; i < 64; i++) a[i] = x[i * 1024 + threadIdx.x];
    __syncthreads();
    for (int k = 0; k < n; k++)
#pragma unroll
        for (int i = 0; i < 64; i++) a[i] = a[i] * a[(i + 7) & 63] + x[k];
#pragma unroll
    for (int i = 0; i < 64; i++) x[i * 1024 + threadIdx.x] = a[i];
}
