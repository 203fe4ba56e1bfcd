/* part_python.c: how the library finds an interpreter, and what it says of a hook's problems; no interpreter runs. */
#define _GNU_SOURCE /* dl_phdr_info */
#include "part_bank.h"

#include "python.c"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

const char gs_trim_hook[] = "";
static char said[400];
static int says;
static bool starts = true;
static const char *const *names_there; /* functions that the library has */

void gs_text_add(struct gs_text *text, const char *string) {
    size_t length = strlen(string);
    memcpy(text->bytes + text->length, string, length);
    text->length += length;
}

void gs_say(enum gs_level level, enum gs_message_kind kind, const struct gs_text *text) {
    REQUIRE(level == GS_WARNING && kind == GS_SAY_TRIM);
    says++;
    snprintf(said, sizeof said, "%.*s", (int)text->length, text->bytes);
}

void *gs_real_dlsym(void *library, const char *symbol) {
    REQUIRE(library == RTLD_DEFAULT);
    for (const char *const *name = names_there; name != NULL && *name != NULL; name++)
        if (strcmp(*name, symbol) == 0)
            return (void *)gs_missing;
    return NULL;
}

void *gs_real_dlopen(const char *file, int flags) {
    (void)file, (void)flags;
    return NULL;
}

int gs_real_dlclose(void *library) {
    (void)library;
    return 0;
}

static bool captures_end = true;
static bool unlocked; /* other threads of the program may run Python */

bool gs_trim_await_captures(void) {
    REQUIRE(unlocked);
    return captures_end;
}

uint64_t gs_trim_wanted(uint32_t gpu) {
    REQUIRE(unlocked);
    return gpu == 1 ? 7 : 0;
}

uint64_t gs_trim_left_ms(void) {
    return 1500;
}

bool gs_trim_enter(void) {
    return false;
}

static uint32_t leaves;

void gs_trim_leave(void) {
    leaves++;
}

bool gs_context_enter(const struct gs_gpu *gpu, bool *primary) {
    (void)gpu, (void)primary;
    return false;
}

bool gs_thread_start(void *(*function)(void *), size_t bytes) {
    REQUIRE(function == help && bytes == 0);
    return starts;
}

uint32_t gs_captures, gs_captures_lost;

static void identities(void) {
    static const struct {
        uint8_t bytes[GS_UUID_BYTES];
        const char *text;
    } of[] = {{{0}, "GPU-00000000-0000-0000-0000-000000000000"},
              {{0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0xfe, 0xdc, 0xba, 0x98, 0x76, 0x54, 0x32, 0x10},
               "GPU-01234567-89ab-cdef-fedc-ba9876543210"}};
    for (size_t i = 0; i < 2; i++) {
        char text[48];
        memset(text, 'x', sizeof text);
        write_uuid(text, of[i].bytes);
        REQUIRE(strcmp(text, of[i].text) == 0);
    }
}

static int yes(void) {
    return 1;
}

static int no(void) {
    return 0;
}

/* An interpreter that has begun, is not ending, and has its lock; of any version. */
static void running(void) {
    for (int what = 0; what < 81; what++) {
        int (*of[])(void) = {NULL, yes, no};
        int begun = what % 3, ends = what / 3 % 3, ended = what / 9 % 3, locked = what / 27;
        if (begun == 0)
            continue;
        python.Py_IsInitialized = of[begun];
        python.Py_IsFinalizing = of[ends];
        python._Py_IsFinalizing = of[ended];
        python.PyEval_ThreadsInitialized = of[locked];
        REQUIRE(is_running() == (begun == 1 && ends != 1 && ended != 1 && locked != 2));
    }
}

/* All that is needed must be there; the rest may be. */
static void functions(void) {
    static const char *names[] = {
#define NAME(result, name, arguments) #name,
        PYTHON(NAME)
#undef NAME
            NULL};
    size_t count = sizeof names / sizeof *names - 1;
    names_there = NULL;
    REQUIRE(!find_functions());
    names_there = names;
    REQUIRE(find_functions() && python.Py_IsFinalizing == NULL && python.PyErr_Clear != NULL);
    for (size_t left_out = 1; left_out < count; left_out++) {
        static const char *some[sizeof names / sizeof *names];
        memcpy(some, names, sizeof names);
        some[left_out] = "Py_None";
        names_there = some;
        REQUIRE(!find_functions());
    }
    static const struct {
        const char *name;
        int found;
    } libraries[] = {{"/usr/lib/libpython3.11.so.1.0", 1}, {"libpython3.9.so", 1},      {"/usr/lib/libpython3.so", 1},
                     {"/usr/lib/libpython2.7.so", 0},      {"/libpython3.11/other", 0}, {"", 0},
                     {"/usr/lib/mylibpython3.11.so", 0}};
    for (size_t i = 0; i < sizeof libraries / sizeof *libraries; i++) {
        struct dl_phdr_info info = {.dlpi_name = libraries[i].name};
        char path[PATH_MAX] = "none";
        REQUIRE(note_library(&info, sizeof info, path) == libraries[i].found);
        REQUIRE(strcmp(path, libraries[i].found ? libraries[i].name : "none") == 0);
    }
}

static const char *first_problem;
static uint32_t cleared;

static PyObject *item(PyObject *list, ssize_t at) {
    REQUIRE(list != NULL && at == 0);
    return first_problem != NULL ? (PyObject *)first_problem : NULL;
}

static const char *text_of(PyObject *object) {
    return (const char *)object;
}

static void clear(void) {
    cleared++;
}

static void problems(void) {
    python.PyList_GetItem = item;
    python.PyUnicode_AsUTF8 = text_of;
    python.PyErr_Clear = clear;
    PyObject *list = (PyObject *)&first_problem;
    say_problems(list);
    REQUIRE(says == 0 && cleared == 1);
    first_problem = "torch: it hangs";
    say_problems(list);
    REQUIRE(says == 1 && cleared == 2);
    REQUIRE(strcmp(said, "memory is asked back, and the program's caches could not all be emptied: torch: it hangs") ==
            0);
    say_problems(NULL);
    REQUIRE(says == 2 && cleared == 3 && strstr(said, ": the interpreter refuses") != NULL);
}

static PyThreadState *unlock(void) {
    unlocked = true;
    return (PyThreadState *)&unlocked;
}

static void lock_again(PyThreadState *thread) {
    REQUIRE(thread == (PyThreadState *)&unlocked && unlocked);
    unlocked = false;
}

static unsigned long long number;

static PyObject *number_of(unsigned long long of) {
    REQUIRE(!unlocked);
    number = of;
    return (PyObject *)&number;
}

/* What the hook is told to give back: nothing while a capture may be spoilt. The program's Python runs meanwhile. */
static void what_is_wanted(void) {
    python.PyEval_SaveThread = unlock;
    python.PyEval_RestoreThread = lock_again;
    python.PyLong_FromUnsignedLongLong = number_of;
    for (int ends = 0; ends < 2; ends++)
        for (uint32_t gpu = 0; gpu < 2; gpu++) {
            captures_end = ends;
            helper.gpu = gpu;
            REQUIRE(wanted(NULL, NULL) == (PyObject *)&number && number == (ends && gpu == 1 ? 7 : 0));
        }
    helper.gpu = 0;
}

/* Without an interpreter, and without a thread, there is nothing to wait for. */
static void no_helper(void) {
    names_there = NULL;
    REQUIRE(!gs_python_trim(gs_now_ms() + 5000) && helper.busy == 0);
    helper.busy = helper.entered = 1;
    at_fork();
    REQUIRE(helper.busy == 0 && helper.entered == 0);
}

static void *its_id(void *id) {
    *(uint32_t *)id = (uint32_t)syscall(SYS_gettid);
    return NULL;
}

/* One that ended with its interpreter while it was inside a trim has not left it. */
static void a_helper_that_died(void) {
    pthread_t thread;
    uint32_t gone = 0, own = (uint32_t)syscall(SYS_gettid);
    REQUIRE(pthread_create(&thread, NULL, its_id, &gone) == 0 && pthread_join(thread, NULL) == 0 && gone != 0);
    leaves = 0;
    for (int inside = 0; inside < 2; inside++) {
        helper.thread = own;
        helper.entered = inside;
        REQUIRE(!has_died() && leaves == 0 && helper.entered == inside);
        helper.thread = 0; /* it has not begun, or is done */
        REQUIRE(!has_died() && leaves == 0 && helper.entered == inside);
        helper.thread = gone;
        REQUIRE(has_died() && leaves == (uint32_t)inside && !helper.entered);
    }
    helper.thread = 0;
}

int main(void) {
    identities();
    a_helper_that_died();
    running();
    functions();
    problems();
    what_is_wanted();
    no_helper();
    return good();
}
