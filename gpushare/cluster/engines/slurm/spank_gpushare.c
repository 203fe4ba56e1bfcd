/*
 * gpushare's SPANK plug-in: the option --gpushare of sbatch, srun and salloc, and the budget in each task.
 *
 * Option: its words go into the job control environment, where the plug-in for submission (gpushare_submit.lua) reads
 * them. Budget: the Prolog of the node has placed the job at the node daemon, and left two files. With one each step
 * tells the daemon that what descends from it belongs to the job (docs/placements.md): as root, before any task starts.
 * The other has the variables of each task, which go after the user's own. A task of a job that was submitted with the
 * option does not start without them.
 *
 * In plugstack.conf:   required /usr/lib/gpushare/spank_gpushare.so dir=/run/gpushare-slurm
 */

#include <dirent.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <slurm/spank.h>

SPANK_PLUGIN(gpushare, 1)

#define VARIABLE      "GPUSHARE"
#define PREFIX        "GPUSHARE_"
#define LONGEST       65536
#define ANSWER_WITHIN 10 /* seconds */
#define TRIES         20

static char directory[1024] = "/run/gpushare-slurm";
static char asked[1024];
static int wanted;

static int option(int value, const char *words, int remote) {
    (void)value;
    (void)remote;
    wanted = 1;
    if (words == NULL || *words == '\0')
        words = "default";
    return (size_t)snprintf(asked, sizeof asked, "%s", words) < sizeof asked ? 0 : -1;
}

static struct spank_option the_option = {
    .name = "gpushare",
    .arginfo = "WORDS",
    .usage = "share GPUs: gpus=2,request=25%,limit=80%,queue=vision (gpus of each node, memory of each GPU)",
    .has_arg = 1,
    .cb = option,
};

int slurm_spank_init(spank_t spank, int count, char **arguments) {
    for (int i = 0; i < count; i++) {
        if (strncmp(arguments[i], "dir=", 4) == 0)
            snprintf(directory, sizeof directory, "%s", arguments[i] + 4);
    }
    if (spank_context() == S_CTX_SLURMD || spank_context() == S_CTX_JOB_SCRIPT)
        return 0;
    return spank_option_register(spank, &the_option) == ESPANK_SUCCESS ? 0 : -1;
}

/* The name of a file that the Prolog has written for the job. False: this is no job. */
static int name_file(spank_t spank, const char *kind, char *path, size_t size) {
    uint32_t job = 0;
    char node[256] = "";
    if (spank_get_item(spank, S_JOB_ID, &job) != ESPANK_SUCCESS)
        return 0;
    (void)spank_getenv(spank, "SLURMD_NODENAME", node, sizeof node);
    return (size_t)snprintf(path, size, "%s/%u.%s.%s", directory, job, node, kind) < size;
}

/* The status of the answer; 0: there was none. */
static int ask(const char *socket_path, const char *request) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct timeval patience = {.tv_sec = ANSWER_WITHIN};
    if ((size_t)snprintf(address.sun_path, sizeof address.sun_path, "%s", socket_path) >= sizeof address.sun_path)
        return 0;
    int daemon = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (daemon < 0)
        return 0;
    char answer[64] = "";
    size_t length = strlen(request), got = 0;
    int status = 0;
    (void)setsockopt(daemon, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (connect(daemon, (struct sockaddr *)&address, sizeof address) == 0 &&
        send(daemon, request, length, MSG_NOSIGNAL) == (ssize_t)length) {
        ssize_t piece;
        while (got < sizeof answer - 1 && (piece = recv(daemon, answer + got, sizeof answer - 1 - got, 0)) > 0)
            got += (size_t)piece;
        if (sscanf(answer, "HTTP/1.%*c %d", &status) != 1)
            status = 0;
    }
    close(daemon);
    return status;
}

/* Say to the daemon that slurmstepd and all that descends from it belong to the job. A daemon that is being restarted
 * is asked again. */
static int join_job(const char *path) {
    static char line[3][LONGEST], body[LONGEST + 64], request[2 * LONGEST];
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return -1;
    int lines = 0;
    while (lines < 3 && fgets(line[lines], sizeof line[0], file) != NULL) {
        line[lines][strcspn(line[lines], "\n")] = '\0';
        lines++;
    }
    fclose(file);
    if (lines == 0)
        return 0; /* the site has no node daemon to join */
    if (lines < 3)
        return -1;
    char id[1024] = "";
    size_t at = 0;
    for (const char *sign = line[1]; *sign != '\0' && at + 4 < sizeof id; sign++)
        at += (size_t)(*sign == '/' ? snprintf(id + at, sizeof id - at, "%%2F")
                                    : snprintf(id + at, sizeof id - at, "%c", *sign));
    int length = snprintf(body, sizeof body, "%s, \"session\": %d}", line[2], (int)getppid());
    snprintf(request, sizeof request,
             "PUT /v1/placements/%s HTTP/1.1\r\nHost: gpushare\r\nContent-Type: application/json\r\n"
             "Content-Length: %d\r\nConnection: close\r\n\r\n%s",
             id, length, body);
    for (int tries = 0; tries < TRIES; tries++) {
        int status = ask(line[0], request);
        if (status != 0)
            return status < 300 ? 0 : -1;
        nanosleep(&(struct timespec){.tv_nsec = 500000000}, NULL);
    }
    return -1;
}

/* Slurm gives each call a handle of its own, so the option's callback cannot use one. */
int slurm_spank_init_post_opt(spank_t spank, int count, char **arguments) {
    (void)count;
    (void)arguments;
    if (!wanted || spank_remote(spank))
        return 0;
    return spank_job_control_setenv(spank, VARIABLE, asked, 1) == ESPANK_SUCCESS ? 0 : -1;
}

/* In a task, as root, before it becomes its user's. Its parent is slurmstepd. The name of the node is not known yet;
 * there is one file of the job, or some if several nodes are tried out on one machine. */
int slurm_spank_task_init_privileged(spank_t spank, int count, char **arguments) {
    (void)count;
    (void)arguments;
    uint32_t job = 0;
    char first[32], path[sizeof directory + 300];
    if (spank_get_item(spank, S_JOB_ID, &job) != ESPANK_SUCCESS)
        return 0;
    snprintf(first, sizeof first, "%u.", job);
    int found = 0, failed = 0;
    DIR *files = opendir(directory);
    for (struct dirent *one; files != NULL && (one = readdir(files)) != NULL;) {
        const char *end = strrchr(one->d_name, '.');
        if (strncmp(one->d_name, first, strlen(first)) != 0 || end == NULL || strcmp(end, ".place") != 0)
            continue;
        found++;
        snprintf(path, sizeof path, "%s/%s", directory, one->d_name);
        failed |= join_job(path);
    }
    if (files != NULL)
        closedir(files);
    if (failed || (wanted && !found))
        slurm_spank_log("gpushare: the node daemon does not take the step into its job; see the Prolog's log and %s",
                        directory);
    return failed || (wanted && !found) ? -1 : 0;
}

/* Take away the user's own variables of gpushare: some change what the library does. */
static int clear(spank_t spank) {
    char **environ, name[256];
    for (int i = 0; spank_get_item(spank, S_JOB_ENV, &environ) == ESPANK_SUCCESS && environ[i] != NULL;) {
        size_t length = strcspn(environ[i], "=");
        if (strncmp(environ[i], PREFIX, strlen(PREFIX)) != 0 || length >= sizeof name) {
            i++;
            continue;
        }
        memcpy(name, environ[i], length);
        name[length] = '\0';
        if (spank_unsetenv(spank, name) != ESPANK_SUCCESS)
            return -1;
    }
    return 0;
}

/* Put `value` before what the variable has, with a colon between. */
static int put_first(spank_t spank, const char *name, const char *value) {
    static char before[LONGEST], after[LONGEST];
    if (spank_getenv(spank, name, before, sizeof before) != ESPANK_SUCCESS || before[0] == '\0' ||
        strcmp(before, value) == 0)
        return spank_setenv(spank, name, value, 1) == ESPANK_SUCCESS ? 0 : -1;
    if ((size_t)snprintf(after, sizeof after, "%s:%s", value, before) >= sizeof after)
        return -1;
    return spank_setenv(spank, name, after, 1) == ESPANK_SUCCESS ? 0 : -1;
}

/* The lines NAME=VALUE of the file, into the task's environment; NAME+=VALUE goes before what the user has there. */
static int give(spank_t spank, FILE *file) {
    static char line[LONGEST];
    while (fgets(line, sizeof line, file) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        char *value = strchr(line, '=');
        if (value == NULL || value == line)
            continue;
        *value++ = '\0';
        char *sign = line + strlen(line) - 1;
        int first = *sign == '+';
        if (first)
            *sign = '\0';
        if (first ? put_first(spank, line, value) : spank_setenv(spank, line, value, 1) != ESPANK_SUCCESS)
            return -1;
    }
    return ferror(file) ? -1 : 0;
}

int slurm_spank_task_init(spank_t spank, int count, char **arguments) {
    (void)count;
    (void)arguments;
    char path[2048];
    if (!name_file(spank, "env", path, sizeof path))
        return 0;
    FILE *file = fopen(path, "r");
    if (file == NULL && errno == ENOENT && !wanted)
        return 0;
    if (file == NULL) {
        slurm_spank_log("gpushare: cannot read %s: %s; the program is not started without its budget", path,
                        strerror(errno));
        return -1;
    }
    int failed = clear(spank) || give(spank, file) ? -1 : 0;
    fclose(file);
    if (failed)
        slurm_spank_log("gpushare: cannot set the variables of %s", path);
    return failed;
}
