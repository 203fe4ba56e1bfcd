/* part_python.c: how the library finds an interpreter, runs its hook, and says what went wrong, with an interpreter
 * that the program plays. */
#define _GNU_SOURCE /* dl_phdr_info */
#include "part_bank.h"

#include <link.h>

/* A library that the program has opened for itself alone, or NULL. */
static const char *loaded;

static int iterate(int (*callback)(struct dl_phdr_info *, size_t, void *), void *data) {
    struct dl_phdr_info other = {.dlpi_name = "/lib/libc.so.6"}, ours = {.dlpi_name = loaded};
    int found = callback(&other, sizeof other, data);
    return found == 0 && loaded != NULL ? callback(&ours, sizeof ours, data) : found;
}

#define dl_iterate_phdr(callback, data) iterate(callback, data)
#include "python.c"

#include <pthread.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <unistd.h>

const char gs_trim_hook[] = "";
static char said[400];
static int says;
static bool starts = true;
static const char *const *names_there; /* functions that the library has */
static void *function_of(const char *name);
static bool opens = true;
static uint32_t opened, closed;

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
    REQUIRE(library == RTLD_DEFAULT || library == (void *)0x99);
    if (library == RTLD_DEFAULT && loaded != NULL)
        return NULL;
    if (function_of(symbol) != NULL)
        return function_of(symbol);
    for (const char *const *name = names_there; name != NULL && *name != NULL; name++)
        if (strcmp(*name, symbol) == 0)
            return (void *)gs_missing;
    return NULL;
}

void *gs_real_dlopen(const char *file, int flags) {
    REQUIRE(strcmp(file, loaded) == 0 && flags == (RTLD_LAZY | RTLD_NOLOAD));
    opened += opens;
    return opens ? (void *)0x99 : NULL;
}

int gs_real_dlclose(void *library) {
    REQUIRE(library == (void *)0x99);
    closed++;
    return 0;
}

static bool captures_end = true;
static bool unlocked; /* other threads of the program may run Python */

bool gs_trim_await_captures(void) {
    REQUIRE(unlocked);
    return captures_end;
}

static bool has_lock;      /* the helper has the interpreter's */
static uint64_t wants = 2; /* of these GPUs, a bit each */

uint64_t gs_trim_wanted(uint32_t gpu) {
    REQUIRE(unlocked || has_lock);
    return wants >> gpu & 1 ? 7 : 0;
}

uint64_t gs_trim_left_ms(void) {
    return 1500;
}

static bool may_enter, has_context, beside; /* the helper runs beside its caller */
static pthread_t helpers_thread;
static uint32_t enters, starts_seen;

bool gs_trim_enter(void) {
    enters++;
    return may_enter;
}

static uint32_t leaves;

void gs_trim_leave(void) {
    leaves++;
}

bool gs_context_enter(const struct gs_gpu *gpu, bool *primary) {
    *primary = gpu == &gs_gpus[1];
    return has_context;
}

bool gs_thread_start(void *(*function)(void *), size_t bytes) {
    REQUIRE(function == help && bytes == 0 && helper.busy == 1 && helper.thread == 0);
    starts_seen++;
    if (starts && beside)
        REQUIRE(pthread_create(&helpers_thread, NULL, function, NULL) == 0);
    else if (starts)
        function(NULL);
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
    for (size_t length = PATH_MAX - 1; length <= PATH_MAX; length++) {
        char longest[PATH_MAX + 1], path[PATH_MAX] = "";
        memset(longest, '/', length);
        memcpy(longest + length - 13, "libpython3.99", 14);
        struct dl_phdr_info info = {.dlpi_name = longest};
        REQUIRE(note_library(&info, sizeof info, path) == (length < PATH_MAX));
    }
    names_there = names;
    loaded = "/lib/other.so"; /* one that only the program sees is found by its file */
    REQUIRE(!find_functions() && opened == 0);
    loaded = "/opt/libpython3.11.so";
    opens = false;
    REQUIRE(!find_functions() && closed == 0);
    opens = true;
    REQUIRE(find_functions() && opened == 1 && closed == 1);
    names_there = NULL;
    REQUIRE(!find_functions() && opened == 2 && closed == 2);
    loaded = NULL;
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

/* ---- the whole of it ------------------------------------------------------------------------------ */

struct object {
    int references;
};

static struct object code, globals, done, asked, trim, list, builtins;

/* The step at which the interpreter fails; 0: none. */
static int fails_at;
static uint32_t calls, runs; /* of the hook; so often it still runs */

static PyObject *fresh(PyObject *object, int step) {
    REQUIRE(has_lock && helper.entered && helper.busy == 1 && helper.thread == (uint32_t)syscall(SYS_gettid));
    object->references += fails_at != step;
    return fails_at != step ? object : NULL;
}

static int ensure(void) {
    REQUIRE(!has_lock && !helper.entered);
    has_lock = true;
    if (beside)
        usleep(100000); /* until it is waited for */
    return 5;
}

static void release(int state) {
    REQUIRE(has_lock && state == 5 && !helper.entered && leaves == enters);
    has_lock = false;
}

static int still_runs(void) {
    runs -= runs > 0;
    return runs > 0;
}

static PyObject *compile(const char *text, const char *file, int mode) {
    REQUIRE(text == gs_trim_hook && strcmp(file, "<gpushare trim>") == 0 && mode == Py_file_input);
    return fresh(&code, 1);
}

static PyObject *new_dictionary(void) {
    return fresh(&globals, 2);
}

static PyObject *builtins_of(void) {
    return &builtins;
}

static int set_item(PyObject *dictionary, const char *name, PyObject *value) {
    REQUIRE(dictionary == &globals && strcmp(name, "__builtins__") == 0 && value == &builtins);
    return fails_at == 3 ? -1 : 0;
}

static PyObject *evaluate(PyObject *of, PyObject *outer, PyObject *inner) {
    REQUIRE(of == &code && outer == &globals && inner == &globals);
    return fresh(&done, 4);
}

static PyObject *get_item(PyObject *dictionary, const char *name) {
    REQUIRE(dictionary == &globals && strcmp(name, "trim") == 0);
    return fails_at == 5 ? NULL : &trim;
}

static PyObject *new_method(struct method *method, PyObject *self, PyObject *module) {
    REQUIRE(method->call == wanted && strcmp(method->name, "wanted") == 0 && method->flags == METH_NOARGS);
    REQUIRE(self == NULL && module == NULL);
    return fresh(&asked, 6);
}

static PyObject *call_hook(PyObject *function, const char *format, ...) {
    va_list arguments;
    REQUIRE(function == &trim && strcmp(format, "O(sii)ds") == 0);
    va_start(arguments, format);
    REQUIRE(va_arg(arguments, PyObject *) == &asked);
    const char *uuid = va_arg(arguments, const char *);
    int index = va_arg(arguments, int), primary = va_arg(arguments, int);
    REQUIRE(strncmp(uuid, index == 0 ? "GPU-aa0" : "GPU-bb0", 7) == 0 && strlen(uuid) == 40);
    REQUIRE(primary == (index == 1) && (uint32_t)index == helper.gpu);
    REQUIRE(va_arg(arguments, double) == 1.5 && strcmp(va_arg(arguments, const char *), GS_TRIM_REASON) == 0);
    va_end(arguments);
    calls++;
    return fresh(&list, 7);
}

static void let_go(PyObject *object) {
    if (object != NULL)
        REQUIRE(object->references-- > 0);
}

static bool whole;

static void *function_of(const char *name) {
    static const struct {
        const char *name;
        void *function;
    } all[] = {{"Py_IsInitialized", (void *)still_runs},
               {"PyGILState_Ensure", (void *)ensure},
               {"PyGILState_Release", (void *)release},
               {"PyEval_SaveThread", (void *)unlock},
               {"PyEval_RestoreThread", (void *)lock_again},
               {"PyEval_GetBuiltins", (void *)builtins_of},
               {"PyEval_EvalCode", (void *)evaluate},
               {"Py_CompileString", (void *)compile},
               {"PyDict_New", (void *)new_dictionary},
               {"PyDict_SetItemString", (void *)set_item},
               {"PyDict_GetItemString", (void *)get_item},
               {"PyCFunction_NewEx", (void *)new_method},
               {"PyLong_FromUnsignedLongLong", (void *)number_of},
               {"PyObject_CallFunction", (void *)call_hook},
               {"PyList_GetItem", (void *)item},
               {"PyUnicode_AsUTF8", (void *)text_of},
               {"PyErr_Clear", (void *)clear},
               {"Py_DecRef", (void *)let_go}};
    for (size_t i = 0; whole && i < sizeof all / sizeof *all; i++)
        if (strcmp(all[i].name, name) == 0)
            return all[i].function;
    return NULL;
}

static uint32_t no_currents;

static CUresult set_current(CUcontext context) {
    REQUIRE(context == NULL);
    no_currents++;
    return CUDA_SUCCESS;
}

/* Whether a helper has run, and has left nothing behind. */
static bool trims(void) {
    calls = enters = leaves = relaxed = no_currents = starts_seen = 0;
    says = 0;
    runs = 1000;
    bool there = gs_python_trim(gs_now_ms() + 30);
    REQUIRE(!has_lock && !unlocked && !helper.entered && enters == leaves && no_currents <= 1);
    REQUIRE(code.references + globals.references + done.references + asked.references + list.references == 0);
    return there;
}

/* The hook runs for each GPU of which memory is wanted, in a context there. Where the interpreter fails that is said.
 */
static void a_helper(void) {
    whole = may_enter = has_context = true;
    gs_driver.cuCtxSetCurrent = set_current;
    gs_gpus[0].uuid[0] = 0xaa;
    gs_gpus[1].uuid[0] = 0xbb;
    first_problem = NULL;
    for (fails_at = 0; fails_at <= 7; fails_at++) {
        wants = 3;
        REQUIRE(trims() && enters == 1 && relaxed == 1 && no_currents == 1 && helper.busy == 0 && helper.thread == 0);
        REQUIRE(calls == (fails_at == 0 || fails_at == 7 ? 2u : 0u) && says == (fails_at == 0 ? 0 : 2));
    }
    fails_at = 0;
    wants = 2;
    REQUIRE(trims() && calls == 1);
    has_context = false;
    REQUIRE(trims() && calls == 0 && no_currents == 1);
    has_context = true;
    gs_captures = 1; /* begun meanwhile: it may be spoilt */
    REQUIRE(trims() && calls == 0);
    gs_captures = 0;
    may_enter = false; /* the program ends */
    REQUIRE(trims() && calls == 0 && enters == 1 && no_currents == 0);
    may_enter = true;
    starts = false;
    REQUIRE(!trims() && helper.busy == 0 && enters == 0 && starts_seen == 1);
    starts = true;
    whole = false;
    REQUIRE(!trims() && starts_seen == 0);
    whole = true;
    runs = 2; /* it runs when the helper is started, and no more when that begins */
    enters = leaves = 0;
    REQUIRE(gs_python_trim(gs_now_ms() + 30) && enters == 0 && helper.busy == 0 && !has_lock);
    runs = 1;
    starts_seen = 0;
    REQUIRE(!gs_python_trim(gs_now_ms() + 30) && starts_seen == 0);
}

/* There is never more than one, and it is not waited for without end. */
static void another_helper(void) {
    pthread_t thread;
    uint32_t gone = 0;
    REQUIRE(pthread_create(&thread, NULL, its_id, &gone) == 0 && pthread_join(thread, NULL) == 0);
    helper.busy = 1;
    helper.thread = (uint32_t)syscall(SYS_gettid);
    uint64_t began = gs_now_ms();
    REQUIRE(trims() && starts_seen == 0 && helper.busy == 1 && gs_now_ms() - began >= 29);
    began = gs_now_ms();
    REQUIRE(gs_python_trim(began) && gs_now_ms() - began < 5000);
    helper.thread = gone;
    REQUIRE(trims() && starts_seen == 1 && calls == 1 && helper.busy == 0);
    beside = true; /* who waits for one is woken */
    began = gs_now_ms();
    REQUIRE(gs_python_trim(began + 20000) && helper.busy == 0 && gs_now_ms() - began < 10000);
    REQUIRE(pthread_join(helpers_thread, NULL) == 0);
    whole = false;
}

int main(void) {
    open_bank();
    identities();
    a_helper_that_died();
    running();
    functions();
    problems();
    what_is_wanted();
    no_helper();
    a_helper();
    another_helper();
    return good();
}
