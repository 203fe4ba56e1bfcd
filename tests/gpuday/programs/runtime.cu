// runtime.cu: NVIDIA's runtime library at a limit of 2 GiB (or without one): codes, what is free, one kernel.
#include <cuda_runtime.h>
#include <stdio.h>

__global__ void add_one(int *value) {
    *value += 1;
}

int main() {
    const size_t piece = 256ull << 20;
    void *held[64];
    size_t available = 0, total = 0;
    int count = 0, code = 0;
    cudaMemGetInfo(&available, &total);
    printf("[\"total, MiB\", %zu]\n", total >> 20);
    while (count < 16 && (code = (int)cudaMalloc(&held[count], piece)) == 0)
        count++;
    printf("[\"code after 4 GiB or before\", %d]\n[\"MiB until then\", %d]\n", code, count * 256);
    while (count > 0)
        cudaFree(held[--count]);
    cudaGetLastError();
    int value = 41, *place = NULL;
    code = (int)cudaMalloc((void **)&place, sizeof *place);
    cudaMemcpy(place, &value, sizeof value, cudaMemcpyHostToDevice);
    add_one<<<1, 1>>>(place);
    cudaMemcpy(&value, place, sizeof value, cudaMemcpyDeviceToHost);
    printf("[\"goes on with a kernel\", %s]\n", code == 0 && value == 42 ? "true" : "false");
    return 0;
}
