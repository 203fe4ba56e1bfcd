/* options.c: the environment variables of gpushare, read once, when the program first needs the driver.
 *
 * The aliases and the order are those of gpushare/env.py; known_names.def is made from its table. Mistakes are handled
 * differently: the command line refuses to start a program; here the program runs already, so a value that cannot be
 * read is reported once and the next source counts.
 *
 * The environment is walked here and not asked with getenv: some programs (shells) have a getenv of their own.
 */
#define _GNU_SOURCE /* program_invocation_short_name */
#include "options.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "credit.h"
#include "lock.h"

extern char **environ;

struct source {
    const char *name;
    enum gs_dialect dialect;
    bool per_device; /* also as NAME_0, NAME_1, ... */
};

static const struct source request_sources[] = {
    {"GPUSHARE_REQUEST", GS_NATIVE, false},
    {"NVIDIA_GPU_MEMORY_REQUEST", GS_MIB, false},
};
static const struct source limit_sources[] = {
    {"GPUSHARE_LIMIT", GS_NATIVE, false},
    {"RUNAI_GPU_MEMORY_LIMIT", GS_RUNAI, false},
    {"NVIDIA_GPU_MEMORY_LIMIT", GS_MIB, false},
    {"CUDA_DEVICE_MEMORY_LIMIT", GS_HAMI, true},
};
static const char *const known_names[] = {
#define GS_NAME(name) #name,
#include "known_names.def"
#undef GS_NAME
};

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* An amount and the variable that it came from. */
struct found {
    bool set;
    struct gs_quantity quantity;
    enum gs_dialect dialect;
    const char *name; /* points into the environment, ends at '=' */
};

static bool is_blank(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* The value of an entry NAME=value if it has that name, else NULL. */
static const char *value_in(const char *entry, const char *name) {
    size_t length = strlen(name);
    return strncmp(entry, name, length) == 0 && entry[length] == '=' ? entry + length + 1 : NULL;
}

/* NULL also for an empty value: that is how scripts unset a variable. */
static const char *value_of(char **environment, const char *name) {
    for (char **entry = environment; entry != NULL && *entry != NULL; entry++) {
        const char *value = value_in(*entry, name);
        if (value == NULL)
            continue;
        while (is_blank(*value))
            value++;
        return *value != '\0' ? value : NULL;
    }
    return NULL;
}

/* Into a field that is all zero. */
static void copy(char *target, size_t size, const char *source, size_t length) {
    memcpy(target, source, length < size - 1 ? length : size - 1);
}

static void warn_of_value(const char *entry, const char *what, bool warn) {
    struct gs_text text = {0};
    if (!warn)
        return;
    gs_text_add(&text, entry);
    gs_text_add(&text, ": ");
    gs_text_add(&text, what);
    gs_say(GS_WARNING, GS_SAY_OPTIONS, &text);
}

/* NAME_<digits>=value: the value. */
static const char *value_per_device(const char *entry, const char *name) {
    size_t at = strlen(name);
    if (strncmp(entry, name, at) != 0 || entry[at++] != '_' || entry[at] == '=')
        return NULL;
    while (entry[at] >= '0' && entry[at] <= '9')
        at++;
    return entry[at] == '=' ? entry + at + 1 : NULL;
}

static bool is_empty(const char *value) {
    while (is_blank(*value))
        value++;
    return *value == '\0';
}

static void read_entry(struct found *found, const char *entry, const char *value, const struct source *source,
                       bool warn) {
    struct gs_quantity quantity;
    if (is_empty(value))
        return;
    if (!gs_quantity_parse(value, source->dialect, &quantity)) {
        warn_of_value(entry, "not an amount of memory: ignored (write 4Gi, 0.25, 25% or max)", warn);
        return;
    }
    bool nothing = source->dialect == GS_HAMI && quantity.kind == GS_KIND_NONE; /* HAMi's 0: as if it were not set */
    if (nothing || (found->set && found->quantity.value <= quantity.value))
        return;
    *found = (struct found){true, quantity, source->dialect, entry};
}

/* One limit holds on each GPU of a job. Of several per-device limits it is the lowest, which is safe for others. */
static struct found find_one(char **environment, const struct source *source, bool warn) {
    struct found found = {0};
    for (char **entry = environment; entry != NULL && *entry != NULL; entry++) {
        const char *value = value_in(*entry, source->name);
        if (value != NULL)
            read_entry(&found, *entry, value, source, warn);
    }
    bool common = found.set;
    for (char **entry = environment; !common && source->per_device && entry != NULL && *entry != NULL; entry++) {
        const char *value = value_per_device(*entry, source->name);
        if (value != NULL)
            read_entry(&found, *entry, value, source, warn);
    }
    return found;
}

static struct found find(char **environment, const struct source *sources, size_t count, bool warn) {
    struct found first = {0};
    for (size_t i = 0; i < count; i++) {
        struct found one = find_one(environment, &sources[i], warn);
        bool differs = first.set && one.set &&
                       (one.quantity.kind != first.quantity.kind || one.quantity.value != first.quantity.value);
        if (differs)
            warn_of_value(one.name, "overruled by another variable", warn);
        if (!first.set)
            first = one;
    }
    return first;
}

static struct gs_amount amount_of(struct gs_quantity quantity) {
    switch (quantity.kind) {
    case GS_KIND_BYTES:
        return (struct gs_amount){.value = quantity.value, .kind = GS_AMOUNT_BYTES};
    case GS_KIND_SHARE:
        return (struct gs_amount){.value = quantity.value, .kind = GS_AMOUNT_SHARE};
    case GS_KIND_MAX:
        return (struct gs_amount){.kind = GS_AMOUNT_MAX};
    default:
        return (struct gs_amount){.value = 0, .kind = GS_AMOUNT_BYTES};
    }
}

/* Fill in what was left out: gpushare.quantity.Budget.of says why so. */
static void fill_budget(struct gs_options *options, struct found request, struct found limit) {
    const struct gs_amount none = {.value = 0, .kind = GS_AMOUNT_BYTES}, max = {.kind = GS_AMOUNT_MAX};
    if (limit.quantity.kind == GS_KIND_NONE)
        limit.quantity.kind = GS_KIND_MAX;
    if (limit.set)
        options->limit = amount_of(limit.quantity);
    if (request.set)
        options->request = amount_of(request.quantity);
    if (!limit.set) {
        options->limit = request.quantity.kind == GS_KIND_NONE ? max : options->request;
    } else if (!request.set) {
        bool no_wish = limit.quantity.kind == GS_KIND_MAX || limit.dialect == GS_RUNAI;
        options->request = no_wish ? none : options->limit;
    }
}

static void check_order(struct gs_options *options, bool warn) {
    bool same = options->request.kind == options->limit.kind && options->request.value > options->limit.value;
    bool whole = options->request.kind == GS_AMOUNT_MAX && options->limit.kind == GS_AMOUNT_SHARE &&
                 options->limit.value < GS_SHARE_PARTS;
    if (!same && !whole)
        return;
    if (warn)
        gs_say_line(GS_WARNING, GS_SAY_OPTIONS, "the request is above the limit: the limit counts for both");
    options->request = options->limit;
}

static uint64_t parse_job(const char *text) {
    uint64_t id = 0;
    for (; text != NULL && *text != '\0' && !is_blank(*text); text++) {
        const char *digits = "0123456789abcdef", *digit = strchr(digits, *text | 0x20);
        if (digit == NULL)
            return 0;
        id = id << 4 | (uint64_t)(digit - digits);
    }
    return id;
}

static bool parse_integer(const char *text, int32_t *number) {
    bool negative = *text == '-';
    int64_t value = 0;
    if (*text == '-' || *text == '+')
        text++;
    if (*text < '0' || *text > '9')
        return false;
    for (; *text >= '0' && *text <= '9'; text++)
        if ((value = value * 10 + (*text - '0')) > INT32_MAX)
            return false;
    if (!is_empty(text))
        return false;
    *number = (int32_t)(negative ? -value : value);
    return true;
}

static bool is_word(const char *text, const char *word) {
    return text != NULL && strncmp(text, word, strlen(word)) == 0 && is_empty(text + strlen(word));
}

/* Reclaim steps separated by commas, in their order. Kill is always added as the last. 0: not understood. */
static uint32_t parse_steps(const char *text) {
    static const struct {
        const char *name;
        size_t length;
        uint32_t bit;
    } in_order[] = {{"trim", 4, GS_STEP_TRIM},
                    {"hook", 4, GS_STEP_HOOK},
                    {"suspend", 7, GS_STEP_SUSPEND},
                    {"term", 4, GS_STEP_TERM},
                    {"kill", 4, GS_STEP_KILL}};
    uint32_t steps = 0;
    size_t next = 0; /* the first that may follow */
    for (const char *at = text;; at++) {
        while (is_blank(*at))
            at++;
        while (next < COUNT(in_order) && strncasecmp(at, in_order[next].name, in_order[next].length) != 0)
            next++;
        if (next == COUNT(in_order))
            return 0;
        steps |= in_order[next].bit;
        for (at += in_order[next++].length; is_blank(*at);)
            at++;
        if (*at == '\0')
            return steps | GS_STEP_KILL;
        if (*at != ',')
            return 0;
    }
}

static enum gs_level parse_level(const char *text) {
    static const char *const names[] = {"error", "warning", "info", "debug"};
    for (size_t i = 0; i < COUNT(names); i++)
        if (is_word(text, names[i]))
            return (enum gs_level)i;
    return GS_WARNING;
}

/* Into a field that is all zero. What is too long for it is left out. */
static void join(char target[108], const char *directory, size_t length, const char *name) {
    size_t rest = strlen(name);
    if (length + rest + 1 > 108)
        return;
    memcpy(target, directory, length);
    memcpy(target + length, name, rest + 1);
}

/* Any user can make a directory of this name in /tmp first: it is used only if it is ours and closed to others. */
static bool is_private(const char *directory) {
    struct stat status = {0};
    GS_CALL(SYS_newfstatat, AT_FDCWD, directory, &status, AT_SYMLINK_NOFOLLOW);
    return S_ISDIR(status.st_mode) && status.st_uid == (uid_t)GS_CALL(SYS_getuid) && (status.st_mode & 077) == 0;
}

static bool is_directory(const char *path) {
    struct stat status;
    return GS_CALL(SYS_newfstatat, AT_FDCWD, path, &status, 0) == 0 && S_ISDIR(status.st_mode);
}

static void per_user_directory(struct gs_text *text, char **environment, bool software_driver) {
    const char *base = value_of(environment, "XDG_RUNTIME_DIR");
    if (is_directory(base)) {
        gs_text_add(text, base);
        gs_text_add(text, "/gpushare");
    } else {
        gs_text_add(text, "/tmp/gpushare-");
        gs_text_number(text, (uint64_t)GS_CALL(SYS_getuid));
    }
    gs_text_add(text, software_driver ? "-sim" : "");
}

static void find_sockets(struct gs_options *options, char **environment) {
    const char *api = value_of(environment, "GPUSHARE_SOCKET");
    if (api != NULL) {
        const char *slash = strrchr(api, '/');
        if (slash != NULL)
            join(options->sockets[0], api, (size_t)(slash - api), "/shim.sock");
        return;
    }
    struct gs_text user = {0};
    int next = 0;
    if (!options->software_driver) /* the system's daemon looks after the real GPUs */
        join(options->sockets[next++], "/run/gpushare", strlen("/run/gpushare"), "/shim.sock");
    per_user_directory(&user, environment, options->software_driver);
    if (is_private(gs_text_ended(&user)))
        join(options->sockets[next], user.bytes, user.length, "/shim.sock");
}

/* Of an environment that has something. */
static void warn_of_unknown(char **environment) {
    for (char **entry = environment; *entry != NULL; entry++) {
        bool known = strncmp(*entry, "GPUSHARE_", 9) != 0;
        for (size_t i = 0; i < COUNT(known_names) && !known; i++)
            known = value_in(*entry, known_names[i]) != NULL;
        if (!known)
            warn_of_value(*entry, "there is no such variable", true);
    }
}

/* Whether one of these variables is set. A variable of HAMi counts only if it sets an amount. */
static bool has_source(char **environment, const struct source *sources, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (sources[i].dialect != GS_HAMI && value_of(environment, sources[i].name) != NULL)
            return true;
    return false;
}

/* Request and limit, and whether they are to be enforced. */
static void read_budget(struct gs_options *options, char **environment, bool warn) {
    struct found request = find(environment, request_sources, COUNT(request_sources), warn);
    struct found limit = find(environment, limit_sources, COUNT(limit_sources), warn);
    options->active = limit.set || options->job_id != 0 ||
                      has_source(environment, request_sources, COUNT(request_sources)) ||
                      has_source(environment, limit_sources, COUNT(limit_sources));
    const char *mode = value_of(environment, "GPUSHARE_MODE");
    if (is_word(mode, "observe") || is_word(mode, "off"))
        options->active = false; /* observing is done by NVML, outside of the process */
    else if (mode != NULL && !is_word(mode, "enforce"))
        warn_of_value("GPUSHARE_MODE", "none of enforce, observe, off: ignored", warn);
    fill_budget(options, request, limit);
    check_order(options, warn);
    const char *limit_name = limit.set ? limit.name : request.set ? request.name : "";
    copy(options->limit_source, sizeof options->limit_source, limit_name, strcspn(limit_name, "\n"));
}

/* When and how the job gives its loan back. */
static void read_reclaim(struct gs_options *options, char **environment, bool warn) {
    const char *text = value_of(environment, "GPUSHARE_PRIORITY");
    if (text != NULL && !parse_integer(text, &options->priority))
        warn_of_value("GPUSHARE_PRIORITY", "not a whole number: ignored", warn);
    text = value_of(environment, "GPUSHARE_GRACE");
    if (text != NULL && !gs_duration_parse(text, &options->grace_ms))
        warn_of_value("GPUSHARE_GRACE", "not a duration (write 5s): ignored", warn);
    else if (text != NULL && options->grace_ms == 0)
        options->grace_ms = 1; /* 0 means the daemon's default */
    text = value_of(environment, "GPUSHARE_ON_RECLAIM");
    if (text != NULL && (options->steps = parse_steps(text)) == 0)
        warn_of_value("GPUSHARE_ON_RECLAIM", "not a part of trim,hook,suspend,term,kill in this order: ignored", warn);
    text = value_of(environment, "GPUSHARE_MIN_RUN_TIME");
    if (text != NULL && !gs_duration_parse(text, &options->min_run_ms))
        warn_of_value("GPUSHARE_MIN_RUN_TIME", "not a duration (write 10m): ignored", warn);
}

/* What the program sees of its GPUs, and its name in messages. */
static void read_program(struct gs_options *options, char **environment) {
    options->visible_request = is_word(value_of(environment, "GPUSHARE_VISIBLE"), "request");
    options->software_driver = is_word(value_of(environment, "GPUSHARE_DRIVER"), "sim");
    const char *devices = value_of(environment, "CUDA_VISIBLE_DEVICES");
    if (devices != NULL)
        copy(options->visible_devices, sizeof options->visible_devices, devices, strlen(devices));
    const char *name = value_of(environment, "GPUSHARE_NAME");
    name = name != NULL ? name : program_invocation_short_name;
    copy(options->name, sizeof options->name, name, strlen(name));
}

void gs_options_read(struct gs_options *options, char **environment, bool warn) {
    *options = (struct gs_options){.level = parse_level(value_of(environment, "GPUSHARE_LOG"))};
    options->job_id = parse_job(value_of(environment, "GPUSHARE_JOB"));
    if (warn)
        gs_message_set_level(options->level);
    warn = warn && options->job_id == 0; /* otherwise `gpushare run` has warned, once for all processes */
    read_budget(options, environment, warn);
    read_reclaim(options, environment, warn);
    read_program(options, environment);
    find_sockets(options, environment);
    if (warn && options->active)
        warn_of_unknown(environment);
}

const struct gs_options *gs_options(void) {
    static struct gs_options options;
    static struct gs_lock lock;
    static bool ready;
    if (!__atomic_load_n(&ready, __ATOMIC_ACQUIRE)) {
        gs_lock(&lock);
        if (!ready) {
            gs_options_read(&options, environ, true);
            __atomic_store_n(&ready, true, __ATOMIC_RELEASE);
        }
        gs_unlock(&lock);
    }
    return &options;
}

uint64_t gs_amount_resolve(struct gs_amount amount, uint64_t total) {
    uint64_t bytes = total;
    if (amount.kind == GS_AMOUNT_BYTES)
        bytes = amount.value;
    else if (amount.kind == GS_AMOUNT_SHARE)
        bytes = (uint64_t)((unsigned __int128)total * amount.value / GS_SHARE_PARTS);
    return bytes >> GS_UNIT_SHIFT << GS_UNIT_SHIFT;
}
