/* Uses the GPU up to a refusal, and says what of the process is not as it was before: signals, umask, directory,
 * environment, sockets among the descriptors below 100, threads. One word for each thing that has changed. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

extern char **environ;

struct state {
    struct { /* not all of struct sigaction: it has bytes that nobody sets */
        void (*handler)(int);
        int flags;
    } actions[65];
    sigset_t blocked;
    mode_t mask;
    char directory[PATH_MAX];
    char *environment[4096];
    unsigned char open[100];
    int threads;
};

static int count_threads(void) {
    DIR *tasks = opendir("/proc/self/task");
    int count = -2; /* . and .. */
    while (readdir(tasks) != NULL)
        count++;
    closedir(tasks);
    return count;
}

static void look(struct state *state) {
    memset(state, 0, sizeof *state);
    for (int number = 1; number < 65; number++) {
        struct sigaction action = {0};
        sigaction(number, NULL, &action);
        state->actions[number].handler = action.sa_handler;
        state->actions[number].flags = action.sa_flags;
    }
    pthread_sigmask(SIG_SETMASK, NULL, &state->blocked);
    umask(state->mask = umask(077));
    if (getcwd(state->directory, sizeof state->directory) == NULL)
        state->directory[0] = '\0';
    for (int i = 0; i < 4095 && environ[i] != NULL; i++)
        state->environment[i] = environ[i];
    for (int fd = 0; fd < 100; fd++) {
        struct stat status;
        state->open[fd] = fstat(fd, &status) == 0 && S_ISSOCK(status.st_mode);
    }
    state->threads = count_threads();
}

#define CALL(name, ...) ((int (*)())dlsym(library, name))(__VA_ARGS__)

int main(void) {
    static struct state before, after;
    void *context, *library = dlopen("libcuda.so.1", RTLD_NOW);
    unsigned long long pointer;
    if (CALL("cuInit", 0) != 0)
        return 1;
    look(&before);
    int result = CALL("cuDevicePrimaryCtxRetain", &context, 0);
    result = result ? result : CALL("cuCtxSetCurrent", context);
    for (int i = 0; i < 1000 && result == 0; i++) {
        result = CALL("cuMemAlloc_v2", &pointer, 64ul << 20);
        if (result == 0 && i % 3 == 0)
            result = CALL("cuMemFree_v2", pointer);
    }
    look(&after);
#define SAME(field) printf("%s", memcmp(&before.field, &after.field, sizeof before.field) == 0 ? "" : #field " ")
    printf("%d ", result);
    SAME(actions);
    SAME(blocked);
    SAME(mask);
    SAME(directory);
    SAME(environment);
    SAME(open);
    SAME(threads);
    printf("\n");
    return 0;
}
