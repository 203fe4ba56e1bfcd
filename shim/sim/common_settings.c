/* common_settings.c: reads GPUSHARE_SIM.
 *
 * The grammar is strict: a setting that is misspelt would otherwise quietly test something else. The first thing
 * wrong is named on stderr, once, and the library then refuses to initialise.
 */
#define _GNU_SOURCE
#include "common_settings.h"

#include <ctype.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILE_BYTES 8192

static struct sim_settings settings;
static bool settings_valid;

struct sim_switches sim_switches;

static const struct switch_row {
    const char *name, *values[3];
    uint8_t *place;
} switch_rows[] = {
#define SIM_SWITCH(name, usual, other, third, freedom) {#name, {#usual, #other, #third}, &sim_switches.name},
#include "switches.def"
};

#define SWITCHES (sizeof switch_rows / sizeof *switch_rows)

static bool complain(const char *format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "gpushare software driver: GPUSHARE_SIM: %s\n", text);
    return false;
}

/* A number with one of the units listed as "name", factor pairs. Zero needs no unit. */
struct unit {
    const char *name;
    double factor;
};

static bool parse_amount(const char *text, const struct unit *units, uint64_t *result) {
    char *end;
    if (!isdigit((unsigned char)*text)) {
        return false;
    }
    errno = 0;
    double value = strtod(text, &end);
    if (errno != 0 || strpbrk(text, "xXpPnN") == text + 1) {
        return false;
    }
    if (*end == '\0' && value == 0) {
        *result = 0;
        return true;
    }
    for (; units->name != NULL; units++) {
        if (strcmp(end, units->name) == 0 && value * units->factor < 1e18) {
            *result = (uint64_t)(value * units->factor);
            return true;
        }
    }
    return false;
}

bool sim_size(const char *text, uint64_t *bytes) {
    static const struct unit units[] = {{"Ki", 1ull << 10}, {"Mi", 1ull << 20}, {"Gi", 1ull << 30},
                                        {"Ti", 1ull << 40}, {"K", 1e3},         {"M", 1e6},
                                        {"G", 1e9},         {"T", 1e12},        {NULL, 0}};
    return parse_amount(text, units, bytes);
}

static bool parse_size(const char *key, const char *text, uint64_t *result) {
    return sim_size(text, result) ||
           complain("%s=%s: not an amount of memory with a unit (such as 16Gi or 300Mi)", key, text);
}

static bool parse_duration(const char *key, const char *text, uint64_t *result) {
    static const struct unit units[] = {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {NULL, 0}};
    return parse_amount(text, units, result) ||
           complain("%s=%s: not a duration with a unit (such as 20us, 500ms or 2s)", key, text);
}

static bool parse_count(const char *key, const char *text, uint64_t low, uint64_t high, uint64_t *result) {
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (!isdigit((unsigned char)*text) || *end != '\0' || errno != 0 || value < low || value > high) {
        return complain("%s=%s: not a whole number from %llu to %llu", key, text, (unsigned long long)low,
                        (unsigned long long)high);
    }
    *result = value;
    return true;
}

static bool copy_text(const char *key, const char *text, char *target, size_t size) {
    if (*text == '\0' || strlen(text) >= size) {
        return complain("%s=%s: empty or longer than %zu characters", key, text, size - 1);
    }
    memset(target, 0, size); /* the whole field is compared when two processes meet on one pool */
    strcpy(target, text);
    return true;
}

/* memory=16Gi for all GPUs, or memory=16Gi/24Gi, one for each. `listed` keeps how many there were. */
static bool parse_memory(char *text, uint32_t *listed) {
    *listed = 0;
    for (char *save = NULL, *part = strtok_r(text, "/", &save); part != NULL; part = strtok_r(NULL, "/", &save)) {
        if (*listed == SIM_MAX_GPUS) {
            return complain("memory: more than %d amounts", SIM_MAX_GPUS);
        }
        if (!parse_size("memory", part, &settings.hardware.memory[*listed])) {
            return false;
        }
        ++*listed;
    }
    return *listed > 0 || complain("memory: empty");
}

static struct sim_fault *new_fault(const char *key, const char *function) {
    if (settings.fault_count == SIM_MAX_FAULTS) {
        complain("%s: more than %d functions", key, SIM_MAX_FAULTS);
        return NULL;
    }
    struct sim_fault *fault = &settings.faults[settings.fault_count];
    if (!copy_text(key, function, fault->function, sizeof fault->function)) {
        return NULL;
    }
    settings.fault_count++;
    return fault;
}

/* latency=FUNCTION:20us[;FUNCTION:..] */
static bool parse_latency(char *text) {
    for (char *save = NULL, *part = strtok_r(text, ";", &save); part != NULL; part = strtok_r(NULL, ";", &save)) {
        char *colon = strchr(part, ':');
        if (colon == NULL) {
            return complain("latency=%s: not FUNCTION:DURATION", part);
        }
        *colon = '\0';
        struct sim_fault *fault = new_fault("latency", part);
        if (fault == NULL || !parse_duration("latency", colon + 1, &fault->latency_ns)) {
            return false;
        }
    }
    return true;
}

/* fail=FUNCTION:N:CODE[;..], where N may be N+ for every call from the N-th on */
static bool parse_fail(char *text) {
    for (char *save = NULL, *part = strtok_r(text, ";", &save); part != NULL; part = strtok_r(NULL, ";", &save)) {
        char *nth = strchr(part, ':');
        char *code = nth == NULL ? NULL : strchr(nth + 1, ':');
        if (code == NULL) {
            return complain("fail=%s: not FUNCTION:N:CODE", part);
        }
        *nth++ = '\0';
        *code++ = '\0';
        struct sim_fault *fault = new_fault("fail", part);
        if (fault == NULL || !copy_text("fail", code, fault->code, sizeof fault->code)) {
            return false;
        }
        size_t length = strlen(nth);
        if (length > 1 && nth[length - 1] == '+') {
            fault->onwards = true;
            nth[length - 1] = '\0';
        }
        if (!parse_count("fail", nth, 1, UINT64_MAX, &fault->nth)) {
            return false;
        }
    }
    return true;
}

static const struct switch_row *find_switch(const char *key) {
    for (size_t index = 0; index < SWITCHES; index++) {
        if (strcmp(key, switch_rows[index].name) == 0) {
            return &switch_rows[index];
        }
    }
    return NULL;
}

static bool parse_switch(const struct switch_row *row, const char *value) {
    bool third = strcmp(row->values[2], "_") != 0;
    for (uint8_t index = 0; index < 2 + third; index++) {
        if (strcmp(value, row->values[index]) == 0) {
            *row->place = index;
            return true;
        }
    }
    return complain("%s=%s: not %s%s%s or %s", row->name, value, row->values[0], third ? ", " : "",
                    third ? row->values[1] : "", row->values[third ? 2 : 1]);
}

static bool complain_unknown(const char *key) {
    char names[256] = "";
    for (size_t index = 0; index < SWITCHES; index++) {
        strcat(strcat(names, ", "), switch_rows[index].name);
    }
    return complain("unknown key '%s' (known: gpus, memory, name, context, reserved, pool, teardown, latency, fail, "
                    "checkpoint_rate, checkpoint_break, driver_version%s)",
                    key, names);
}

static bool parse_pair(char *key, char *value, uint32_t *listed) {
    struct sim_hardware *hardware = &settings.hardware;
    uint64_t number = 0;
    if (strcmp(key, "gpus") == 0) {
        bool good = parse_count(key, value, 1, SIM_MAX_GPUS, &number);
        hardware->gpus = (uint32_t)number;
        return good;
    }
    if (strcmp(key, "driver_version") == 0) {
        bool good = parse_count(key, value, 11020, 99990, &number);
        hardware->driver_version = (uint32_t)number;
        return good;
    }
    if (strcmp(key, "memory") == 0) {
        return parse_memory(value, listed);
    }
    if (strcmp(key, "name") == 0) {
        return copy_text(key, value, hardware->name, sizeof hardware->name);
    }
    if (strcmp(key, "context") == 0) {
        return parse_size(key, value, &hardware->context_bytes);
    }
    if (strcmp(key, "reserved") == 0) {
        return parse_size(key, value, &hardware->reserved_bytes);
    }
    if (strcmp(key, "teardown") == 0) {
        return parse_duration(key, value, &hardware->teardown_ns);
    }
    if (strcmp(key, "pool") == 0) {
        return copy_text(key, value, settings.pool, sizeof settings.pool);
    }
    if (strcmp(key, "checkpoint_rate") == 0) {
        return parse_size(key, value, &settings.checkpoint_rate);
    }
    if (strcmp(key, "checkpoint_break") == 0) {
        return parse_count(key, value, 1, UINT64_MAX, &settings.checkpoint_break);
    }
    if (strcmp(key, "latency") == 0) {
        return parse_latency(value);
    }
    if (strcmp(key, "fail") == 0) {
        return parse_fail(value);
    }
    const struct switch_row *row = find_switch(key);
    return row != NULL ? parse_switch(row, value) : complain_unknown(key);
}

/* Cuts the next key=value off *rest, at a separator outside double quotes, and takes the quotes out. */
static char *next_pair(char **rest, char separator) {
    char *start = *rest, *write = start;
    bool quoted = false;
    if (start == NULL) {
        return NULL;
    }
    for (char *read = start;; read++) {
        if (*read == '"') {
            quoted = !quoted;
        } else if (*read == '\0' || (*read == separator && !quoted)) {
            *rest = *read == '\0' ? NULL : read + 1;
            *write = '\0';
            return start;
        } else {
            *write++ = *read;
        }
    }
}

static char *trim(char *text) {
    while (isspace((unsigned char)*text)) {
        text++;
    }
    for (size_t length = strlen(text); length > 0 && isspace((unsigned char)text[length - 1]); length--) {
        text[length - 1] = '\0';
    }
    return text;
}

static bool parse_text(char *text, char separator) {
    uint32_t listed = 0;
    for (char *rest = text, *pair; (pair = next_pair(&rest, separator)) != NULL;) {
        pair = trim(pair);
        if (*pair == '\0' || (separator == '\n' && *pair == '#')) {
            continue;
        }
        char *equals = strchr(pair, '=');
        if (equals == NULL) {
            return complain("'%s' is not key=value", pair);
        }
        *equals = '\0';
        if (!parse_pair(trim(pair), trim(equals + 1), &listed)) {
            return false;
        }
    }
    if (listed > 1 && listed != settings.hardware.gpus) {
        return complain("memory names %u amounts for gpus=%u", listed, settings.hardware.gpus);
    }
    for (uint32_t gpu = listed == 0 ? 1 : listed; gpu < settings.hardware.gpus; gpu++) {
        settings.hardware.memory[gpu] = settings.hardware.memory[0];
    }
    for (uint32_t gpu = 0; gpu < settings.hardware.gpus; gpu++) {
        if (settings.hardware.memory[gpu] <= settings.hardware.reserved_bytes) {
            return complain("memory: not more than reserved");
        }
    }
    return true;
}

static bool read_file(const char *path, char *text) {
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return complain("cannot read @%s: %s", path, strerror(errno));
    }
    size_t length = fread(text, 1, FILE_BYTES - 1, file);
    fclose(file);
    text[length] = '\0';
    return length < FILE_BYTES - 1 || complain("@%s is longer than %d bytes", path, FILE_BYTES - 2);
}

static void set_defaults(void) {
    struct sim_hardware *hardware = &settings.hardware;
    hardware->gpus = 1;
    hardware->driver_version = 13000;
    hardware->memory[0] = 16ull << 30;
    hardware->context_bytes = 300ull << 20;
    copy_text("name", "gpushare software GPU", hardware->name, sizeof hardware->name);
    snprintf(settings.pool, sizeof settings.pool, "/dev/shm/gpushare-sim-%u", (unsigned)geteuid());
}

static void load(void) {
    char text[FILE_BYTES];
    const char *variable = getenv("GPUSHARE_SIM");
    set_defaults();
    if (variable == NULL) {
        variable = "";
    }
    if (variable[0] == '@') {
        settings_valid = read_file(variable + 1, text) && parse_text(text, '\n');
    } else if (strlen(variable) >= sizeof text) {
        settings_valid = complain("longer than %d bytes; put it into a file and say @FILE", FILE_BYTES - 1);
    } else {
        strcpy(text, variable);
        settings_valid = parse_text(text, ',');
    }
}

const struct sim_settings *sim_settings(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
    return settings_valid ? &settings : NULL;
}

int sim_driver_version(void) {
    sim_settings();
    return (int)settings.hardware.driver_version;
}
