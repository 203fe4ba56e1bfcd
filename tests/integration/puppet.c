/* A GPU program on strings: does what it is told on standard input, one line an order, one line an answer.
 *
 *   open DEVICE         a primary context          -> ok
 *   alloc BYTES         cuMemAlloc                 -> ok POINTER MILLISECONDS | error CODE MILLISECONDS
 *   free POINTER        cuMemFree                  -> ok | error CODE
 *   free last|all                                  -> ok COUNT
 *   info                cuMemGetInfo               -> ok FREE TOTAL
 *   total DEVICE        cuDeviceTotalMem           -> ok BYTES
 *   cache BYTES COUNT   so many allocations from the default pool, freed again, and kept by it
 *                                                  -> ok RESERVED | error CODE RESERVED
 *   pass BYTES          an allocation from the default pool, freed again; then the stream is synchronised
 *                                                  -> ok | error CODE
 *   pool                what the default pool holds -> ok RESERVED
 *   churn MS MAX        random allocations (up to MAX bytes) and frees for MS milliseconds, at least one pair
 *                                                  -> ok CALLS REFUSED WORST_MILLISECONDS
 *   term free COUNT     on SIGTERM free the last COUNT allocations | term ignore | term die (the default)
 *   term tell COUNT     the same, and say `gave FREED`
 *   managed BYTES       cuMemAllocManaged          -> ok | error CODE
 *   fill BYTE           writes it to the first 4096 bytes of each allocation  -> ok COUNT
 *   filled BYTE         whether all of these are it -> ok | error BYTE
 *   stop                SIGSTOP to itself          -> ok, when somebody lets it go on
 *   fork MS             a child that holds all that a child inherits for MS milliseconds  -> ok PID
 *   exec                become a fresh puppet      -> ok, from the fresh one
 *   pid                                            -> ok PID
 *   quit
 *
 * Finds the driver by linking with -lcuda, or with -DBY_DLOPEN through dlopen and dlsym.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef unsigned long long pointer;
typedef void *handle;

#define DRIVER(X)                                                                                                      \
    X(cuInit, "cuInit", (unsigned))                                                                                    \
    X(cuDeviceGet, "cuDeviceGet", (int *, int))                                                                        \
    X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (handle *, int))                                           \
    X(cuCtxSetCurrent, "cuCtxSetCurrent", (handle))                                                                    \
    X(cuDeviceTotalMem_v2, "cuDeviceTotalMem_v2", (size_t *, int))                                                     \
    X(cuMemAlloc_v2, "cuMemAlloc_v2", (pointer *, size_t))                                                             \
    X(cuMemFree_v2, "cuMemFree_v2", (pointer))                                                                         \
    X(cuMemGetInfo_v2, "cuMemGetInfo_v2", (size_t *, size_t *))                                                        \
    X(cuMemsetD8_v2, "cuMemsetD8_v2", (pointer, unsigned char, size_t))                                                \
    X(cuMemcpyDtoH_v2, "cuMemcpyDtoH_v2", (void *, pointer, size_t))                                                   \
    X(cuMemAllocManaged, "cuMemAllocManaged", (pointer *, size_t, unsigned))                                           \
    X(cuDeviceGetDefaultMemPool, "cuDeviceGetDefaultMemPool", (handle *, int))                                         \
    X(cuMemPoolSetAttribute, "cuMemPoolSetAttribute", (handle, int, void *))                                           \
    X(cuMemPoolGetAttribute, "cuMemPoolGetAttribute", (handle, int, void *))                                           \
    X(cuCtxGetDevice, "cuCtxGetDevice", (int *))                                                                       \
    X(cuMemAllocAsync, "cuMemAllocAsync", (pointer *, size_t, handle))                                                 \
    X(cuMemFreeAsync, "cuMemFreeAsync", (pointer, handle))                                                             \
    X(cuStreamSynchronize, "cuStreamSynchronize", (handle))                                                            \
    X(cuCtxSynchronize, "cuCtxSynchronize", (void))

#ifdef BY_DLOPEN
#define DECLARE(name, text, arguments) static int(*name) arguments;
DRIVER(DECLARE)
static void find_driver(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        exit(3);
    }
#define FIND(name, text, arguments) *(void **)&name = dlsym(library, text);
    DRIVER(FIND)
}
#else
#define DECLARE(name, text, arguments) int name arguments;
DRIVER(DECLARE)
static void find_driver(void) {}
#endif

enum { MOST = 1 << 16 };
static pointer held[MOST];
static int count;
static char *program;
static volatile sig_atomic_t asked;
static int free_on_term = -1; /* -1: die */
static int tell;

static void on_term(int signal_number) {
    (void)signal_number;
    asked = 1;
}

static double now_ms(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e3 + (double)time.tv_nsec / 1e6;
}

static int take(size_t bytes) {
    pointer fresh = 0;
    int code = count < MOST ? cuMemAlloc_v2(&fresh, bytes) : -1;
    if (code == 0)
        held[count++] = fresh;
    return code;
}

static int drop(int index) {
    int code = cuMemFree_v2(held[index]);
    if (code == 0)
        held[index] = held[--count];
    return code;
}

/* The first bytes of each allocation: all of them would take the software driver as much host memory. */
enum { LOOKED_AT = 4096 };

static int find_other(int byte) {
    static unsigned char bytes[LOOKED_AT];
    for (int i = 0; i < count; i++) {
        if (cuMemcpyDtoH_v2(bytes, held[i], sizeof bytes) != 0)
            return -1;
        for (size_t at = 0; at < sizeof bytes; at++)
            if (bytes[at] != byte)
                return bytes[at];
    }
    return byte;
}

static void churn(double lasting, size_t most) {
    unsigned seed = (unsigned)getpid();
    long calls = 0, refused = 0;
    double worst = 0, end = now_ms() + lasting;
    do {
        double began = now_ms();
        if (count == 0 || (rand_r(&seed) % 2 && count < 64))
            refused += take(((size_t)rand_r(&seed) * 4096) % most + 1) != 0;
        else
            refused += drop((int)((unsigned)rand_r(&seed) % (unsigned)count)) != 0;
        double lasted = now_ms() - began;
        worst = lasted > worst ? lasted : worst;
        calls++;
    } while (now_ms() < end);
    printf("ok %ld %ld %.3f\n", calls, refused, worst);
}

static int default_pool(handle *pool) {
    int device = 0, code = cuCtxGetDevice(&device);
    return code ? code : cuDeviceGetDefaultMemPool(pool, device);
}

static unsigned long long pool_holds(void) {
    enum { RESERVED_MEM_CURRENT = 5 };
    uint64_t bytes = 0;
    handle pool;
    if (default_pool(&pool) == 0)
        cuMemPoolGetAttribute(pool, RESERVED_MEM_CURRENT, &bytes);
    return bytes;
}

static int cache(size_t bytes, long long wanted) {
    enum { RELEASE_THRESHOLD = 4 };
    static pointer kept[256];
    uint64_t forever = UINT64_MAX;
    handle pool;
    int blocks = 0, code = default_pool(&pool);
    code = code ? code : cuMemPoolSetAttribute(pool, RELEASE_THRESHOLD, &forever);
    while (!code && blocks < wanted && blocks < 256)
        if (!(code = cuMemAllocAsync(&kept[blocks], bytes, NULL)))
            blocks++;
    while (blocks > 0)
        cuMemFreeAsync(kept[--blocks], NULL);
    cuCtxSynchronize();
    return code;
}

static void give_back(void) {
    int freed = 0;
    asked = 0;
    for (int left = free_on_term; left > 0 && count > 0; left--)
        freed += drop(count - 1) == 0;
    if (tell)
        printf("gave %d\n", freed);
}

/* The child keeps what fork has given it, but for the ends of our pipes: whoever reads those waits for our own end. */
static int linger(long long milliseconds) {
    signal(SIGCHLD, SIG_IGN);
    int child = fork();
    if (child == 0) {
        struct timespec rest = {milliseconds / 1000, milliseconds % 1000 * 1000000};
        close(0);
        close(1);
        nanosleep(&rest, NULL);
        _exit(0);
    }
    return child;
}

static void obey(char *order) {
    char word[32] = "", what[32] = "";
    long long number = 0, second = 0;
    sscanf(order, "%31s %31s %lld", word, what, &second);
    number = atoll(what);
    if (!strcmp(word, "open")) {
        int device = 0, code = cuDeviceGet(&device, (int)number);
        handle context = NULL;
        code = code ? code : cuDevicePrimaryCtxRetain(&context, device);
        code = code ? code : cuCtxSetCurrent(context);
        printf(code ? "error %d\n" : "ok\n", code);
    } else if (!strcmp(word, "alloc")) {
        double began = now_ms();
        int code = take((size_t)number);
        double lasted = now_ms() - began;
        if (code)
            printf("error %d %.3f\n", code, lasted);
        else
            printf("ok %llu %.3f\n", held[count - 1], lasted);
    } else if (!strcmp(word, "free")) {
        int freed = 0, code = 0;
        if (!strcmp(what, "last") || !strcmp(what, "all")) {
            int until = what[0] == 'a' ? 0 : count - 1;
            while (count > until && !(code = drop(count - 1)))
                freed++;
            printf(code ? "error %d\n" : "ok %d\n", code ? code : freed);
        } else {
            code = cuMemFree_v2(strtoull(what, NULL, 10));
            printf(code ? "error %d\n" : "ok 1\n", code);
        }
    } else if (!strcmp(word, "info")) {
        size_t free_bytes = 0, total = 0;
        int code = cuMemGetInfo_v2(&free_bytes, &total);
        if (code)
            printf("error %d\n", code);
        else
            printf("ok %zu %zu\n", free_bytes, total);
    } else if (!strcmp(word, "total")) {
        size_t total = 0;
        int code = cuDeviceTotalMem_v2(&total, (int)number);
        printf(code ? "error %zu\n" : "ok %zu\n", code ? (size_t)code : total);
    } else if (!strcmp(word, "cache")) {
        int code = cache((size_t)number, second);
        if (code)
            printf("error %d %llu\n", code, pool_holds());
        else
            printf("ok %llu\n", pool_holds());
    } else if (!strcmp(word, "pass")) {
        pointer passed = 0;
        int code = cuMemAllocAsync(&passed, (size_t)number, NULL);
        code = code ? code : cuMemFreeAsync(passed, NULL);
        code = code ? code : cuStreamSynchronize(NULL);
        printf(code ? "error %d\n" : "ok\n", code);
    } else if (!strcmp(word, "pool")) {
        printf("ok %llu\n", pool_holds());
    } else if (!strcmp(word, "churn")) {
        churn((double)number, (size_t)second);
    } else if (!strcmp(word, "term")) {
        tell = !strcmp(what, "tell");
        free_on_term = tell || !strcmp(what, "free") ? (int)second : !strcmp(what, "ignore") ? 0 : -1;
        signal(SIGTERM, free_on_term < 0 ? SIG_DFL : on_term);
        printf("ok\n");
    } else if (!strcmp(word, "managed")) {
        pointer fresh = 0;
        int code = count < MOST ? cuMemAllocManaged(&fresh, (size_t)number, 1) : -1;
        if (code == 0)
            held[count++] = fresh;
        printf(code ? "error %d\n" : "ok\n", code);
    } else if (!strcmp(word, "fill")) {
        for (int i = 0; i < count; i++)
            cuMemsetD8_v2(held[i], (unsigned char)number, LOOKED_AT);
        printf("ok %d\n", count);
    } else if (!strcmp(word, "filled")) {
        int found = find_other((int)number);
        printf(found == number ? "ok\n" : "error %d\n", found);
    } else if (!strcmp(word, "stop")) {
        raise(SIGSTOP);
        printf("ok\n");
    } else if (!strcmp(word, "fork")) {
        printf("ok %d\n", linger(number));
    } else if (!strcmp(word, "exec")) {
        execl(program, program, "again", (char *)NULL);
        printf("error %d\n", errno);
    } else if (!strcmp(word, "pid")) {
        printf("ok %d\n", (int)getpid());
    } else if (!strcmp(word, "quit")) {
        exit(0);
    } else {
        printf("error what? %s\n", word);
    }
}

int main(int arguments, char **words) {
    program = words[0];
    find_driver();
    int code = cuInit(0);
    if (code) {
        fprintf(stderr, "cuInit: %d\n", code);
        return 4;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (arguments > 1)
        printf("ok\n");
    char order[256];
    size_t length = 0;
    for (;;) {
        if (asked)
            give_back();
        struct pollfd input = {.fd = 0, .events = POLLIN};
        if (poll(&input, 1, -1) < 0)
            continue; /* a signal */
        char letter;
        ssize_t got = read(0, &letter, 1);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return 0;
        if (letter != '\n' && length < sizeof order - 1) {
            order[length++] = letter;
            continue;
        }
        order[length] = 0;
        length = 0;
        obey(order);
    }
}
