/* Uses the GPU, and starts itself again in the way that it is told: fork | vfork | spawn | exec. The child (argument
 * "child") takes CHILD bytes; with fork it does so without exec, where CUDA does not work but must not hang either.
 * Says what each got: parent PARENT_RESULT child CHILD_STATUS. */
#include <dlfcn.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static void *library;

#define CALL(name, ...) ((int (*)())dlsym(library, name))(__VA_ARGS__)

static int take(size_t bytes) {
    void *context;
    unsigned long long pointer;
    library = dlopen("libcuda.so.1", RTLD_NOW);
    int result = CALL("cuInit", 0);
    result = result ? result : CALL("cuDevicePrimaryCtxRetain", &context, 0);
    result = result ? result : CALL("cuCtxSetCurrent", context);
    return result ? result : CALL("cuMemAlloc_v2", &pointer, bytes);
}

int main(int count, char **words) {
    const size_t gib = 1ul << 30;
    if (count > 1 && strcmp(words[1], "child") == 0)
        return take(gib);
    int status = 0, result = take(gib);
    char *child[] = {words[0], (char *)"child", NULL};
    pid_t pid;
    if (strcmp(words[1], "spawn") == 0) {
        posix_spawn(&pid, "/proc/self/exe", NULL, NULL, child, environ);
    } else if (strcmp(words[1], "vfork") == 0) {
        pid = vfork();
        if (pid == 0) {
            execv("/proc/self/exe", child);
            _exit(99);
        }
    } else {
        pid = fork();
        if (pid == 0 && strcmp(words[1], "exec") == 0)
            execv("/proc/self/exe", child);
        if (pid == 0)
            _exit(take(gib));
    }
    waitpid(pid, &status, 0);
    unsigned long long more;
    printf("%d %d %d\n", result, WIFEXITED(status) ? WEXITSTATUS(status) : -1, CALL("cuMemAlloc_v2", &more, gib));
    fflush(stdout);
    getchar();
    return 0;
}
