/* python.c: running trim_hook.py in an interpreter that we find in the process.
 *
 * The interpreter is found by name, when a trim needs it: in the program itself (a static build exports the same
 * symbols), in a libpython that it is linked with, or in one that it has opened. No file is searched: the hook's text
 * is in this library, so it is there in every container and sandbox, with every path and flag of the interpreter, and
 * always in the library's own version.
 *
 * The hook runs on a thread of its own, which ends with it. That thread may wait for the interpreter's lock as long as
 * a native call holds it. An interpreter that is being finalised ends such a thread with pthread_exit, or lets it sleep
 * without end. So nothing may depend on it: the thread of borrower.c waits for a bounded time, and a helper that gets
 * the lock later finds that nothing is wanted any more. There is never more than one helper.
 */
#define _GNU_SOURCE
#include "python.h"

#include <dlfcn.h>
#include <link.h>
#include <string.h>

#include "moments.h"
#include "hooks.h"
#include "loader.h"
#include "message.h"
#include "stream.h"
#include "thread.h"
#include "trim.h"

extern const char gs_trim_hook[] __attribute__((visibility("hidden"))); /* trim_hook.S */

/* ---- the interpreter ------------------------------------------------------------------------------ */

/* Python's own declarations are not needed to build us. Of all of this the ABI is the same since 3.2. */
typedef struct object PyObject;
typedef struct thread PyThreadState;
struct method {
    const char *name;
    PyObject *(*call)(PyObject *self, PyObject *arguments);
    int flags;
    const char *doc;
};
#define METH_NOARGS   4
#define Py_file_input 257

#define PYTHON(F)                                                                                                      \
    F(int, Py_IsInitialized, (void))                                                                                   \
    F(int, PyGILState_Ensure, (void))                                                                                  \
    F(void, PyGILState_Release, (int))                                                                                 \
    F(PyThreadState *, PyEval_SaveThread, (void))                                                                      \
    F(void, PyEval_RestoreThread, (PyThreadState *))                                                                   \
    F(PyObject *, PyEval_GetBuiltins, (void))                                                                          \
    F(PyObject *, PyEval_EvalCode, (PyObject *, PyObject *, PyObject *))                                               \
    F(PyObject *, Py_CompileString, (const char *, const char *, int))                                                 \
    F(PyObject *, PyDict_New, (void))                                                                                  \
    F(int, PyDict_SetItemString, (PyObject *, const char *, PyObject *))                                               \
    F(PyObject *, PyDict_GetItemString, (PyObject *, const char *))                                                    \
    F(PyObject *, PyCFunction_NewEx, (struct method *, PyObject *, PyObject *))                                        \
    F(PyObject *, PyLong_FromUnsignedLongLong, (unsigned long long))                                                   \
    F(PyObject *, PyObject_CallFunction, (PyObject *, const char *, ...))                                              \
    F(PyObject *, PyList_GetItem, (PyObject *, ssize_t))                                                               \
    F(const char *, PyUnicode_AsUTF8, (PyObject *))                                                                    \
    F(void, PyErr_Clear, (void))                                                                                       \
    F(void, Py_DecRef, (PyObject *))
/* Not in every version. */
#define PYTHON_MAYBE(F)                                                                                                \
    F(int, Py_IsFinalizing, (void))           /* from 3.13 on */                                                       \
    F(int, _Py_IsFinalizing, (void))          /* 3.7 to 3.12 */                                                        \
    F(int, PyEval_ThreadsInitialized, (void)) /* until 3.12; before 3.7 there may be no lock at all */

static struct {
#define FIELD(result, name, arguments) result(*name) arguments;
    PYTHON(FIELD)
    PYTHON_MAYBE(FIELD)
#undef FIELD
} python;

/* A libpython that was opened with RTLD_LOCAL. */
static int note_library(struct dl_phdr_info *info, size_t size, void *path) {
    (void)size;
    const char *slash = strrchr(info->dlpi_name, '/'), *name = slash != NULL ? slash + 1 : info->dlpi_name;
    if (strncmp(name, "libpython3.", 11) != 0 || strlen(info->dlpi_name) >= PATH_MAX)
        return 0;
    memcpy(path, info->dlpi_name, strlen(info->dlpi_name) + 1);
    return 1;
}

static bool find_functions(void) {
    char path[PATH_MAX] = "";
    void *library = RTLD_DEFAULT;
    if (gs_real_dlsym(RTLD_DEFAULT, "Py_IsInitialized") == NULL) {
        if (dl_iterate_phdr(note_library, path) != 0)
            library = gs_real_dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
        if (library == RTLD_DEFAULT || library == NULL)
            return false;
    }
    bool good = true;
#define FIND(result, name, arguments) *(void **)&python.name = gs_real_dlsym(library, #name);
#define NEED(result, name, arguments) good = good && python.name != NULL;
    PYTHON(FIND)
    PYTHON(NEED)
    PYTHON_MAYBE(FIND)
#undef FIND
#undef NEED
    if (library != RTLD_DEFAULT)
        gs_real_dlclose(library);
    return good;
}

static bool is_running(void) {
    return python.Py_IsInitialized() && !(python.Py_IsFinalizing != NULL && python.Py_IsFinalizing()) &&
           !(python._Py_IsFinalizing != NULL && python._Py_IsFinalizing()) &&
           (python.PyEval_ThreadsInitialized == NULL || python.PyEval_ThreadsInitialized());
}

/* ---- the hook ------------------------------------------------------------------------------------- */

static struct {
    uint32_t busy; /* futex: a helper is there */
    uint32_t thread;
    bool entered; /* it is between gs_trim_enter and gs_trim_leave */
    uint32_t gpu; /* that the hook is about */
} helper;

/* wanted(): what the frameworks have put back into the driver's pools is given back first. Before each cache that is
 * emptied, the program's captures have ended, or nothing is wanted any more. */
static PyObject *wanted(PyObject *self, PyObject *arguments) {
    (void)self, (void)arguments;
    PyThreadState *thread = python.PyEval_SaveThread();
    uint64_t bytes = gs_trim_await_captures() ? gs_trim_wanted(helper.gpu) : 0;
    python.PyEval_RestoreThread(thread);
    return python.PyLong_FromUnsignedLongLong(bytes);
}

static void say_problem(const char *problem) {
    struct gs_text text = {0};
    gs_text_add(&text, "memory is asked back, and the program's caches could not all be emptied: ");
    gs_text_add(&text, problem);
    gs_say(GS_WARNING, GS_SAY_TRIM, &text);
}

/* The first of a list of texts. */
static void say_problems(PyObject *problems) {
    PyObject *first = problems != NULL ? python.PyList_GetItem(problems, 0) : NULL;
    const char *text = first != NULL ? python.PyUnicode_AsUTF8(first) : NULL;
    if (text != NULL)
        say_problem(text);
    else if (problems == NULL)
        say_problem("the interpreter refuses");
    python.PyErr_Clear(); /* of an empty list */
}

static void write_uuid(char *text, const uint8_t uuid[GS_UUID_BYTES]) {
    static const char digits[] = "0123456789abcdef";
    memcpy(text, "GPU-", 4);
    text += 4;
    for (int i = 0; i < GS_UUID_BYTES; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            *text++ = '-';
        *text++ = digits[uuid[i] >> 4];
        *text++ = digits[uuid[i] & 15];
    }
    *text = '\0';
}

static PyObject *compiled(void) {
    PyObject *code = python.Py_CompileString(gs_trim_hook, "<gpushare trim>", Py_file_input);
    PyObject *globals = code != NULL ? python.PyDict_New() : NULL;
    PyObject *done = NULL;
    if (globals != NULL && python.PyDict_SetItemString(globals, "__builtins__", python.PyEval_GetBuiltins()) == 0)
        done = python.PyEval_EvalCode(code, globals, globals);
    python.Py_DecRef(code);
    if (done == NULL) {
        python.Py_DecRef(globals);
        return NULL;
    }
    python.Py_DecRef(done);
    return globals;
}

static void run_hook(const struct gs_gpu *gpu, bool primary) {
    static struct method method = {"wanted", wanted, METH_NOARGS, NULL};
    char uuid[48];
    PyObject *problems = NULL, *globals = compiled();
    PyObject *trim = globals != NULL ? python.PyDict_GetItemString(globals, "trim") : NULL;
    PyObject *asked = trim != NULL ? python.PyCFunction_NewEx(&method, NULL, NULL) : NULL;
    write_uuid(uuid, gpu->uuid);
    if (asked != NULL)
        problems = python.PyObject_CallFunction(trim, "O(sii)ds", asked, uuid, (int)gpu->index, (int)primary,
                                                (double)gs_trim_left_ms() / 1000, GS_TRIM_REASON);
    say_problems(problems);
    python.Py_DecRef(problems);
    python.Py_DecRef(asked);
    python.Py_DecRef(globals);
}

/* On each GPU with a context of the program's as the current one: the frameworks' CUDA runtime then works there,
 * instead of opening a context on the first GPU that it sees. */
static void run_hooks(void) {
    for (uint32_t i = 0; i < GS_MAX_GPUS; i++) {
        struct gs_gpu *gpu = gs_gpu_numbered((uint8_t)i);
        bool primary;
        helper.gpu = i;
        if (gs_trim_wanted(i) == 0 || gs_capture_is_underway())
            continue;
        if (gs_context_enter(gpu, &primary))
            run_hook(gpu, primary);
    }
    gs_driver.cuCtxSetCurrent(NULL);
}

static void *help(void *unused) {
    (void)unused;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    __atomic_store_n(&helper.thread, (uint32_t)GS_CALL(SYS_gettid), __ATOMIC_RELEASE);
    gs_driver.cuThreadExchangeStreamCaptureMode(&mode);
    if (is_running()) {
        int state = python.PyGILState_Ensure();
        __atomic_store_n(&helper.entered, true, __ATOMIC_RELAXED);
        if (gs_trim_enter())
            run_hooks();
        gs_trim_leave();
        __atomic_store_n(&helper.entered, false, __ATOMIC_RELAXED);
        python.PyGILState_Release(state);
    }
    __atomic_store_n(&helper.thread, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&helper.busy, 0, __ATOMIC_RELEASE);
    gs_futex_wake(&helper.busy, INT_MAX);
    return NULL;
}

/* With an interpreter that is no more. */
static bool has_died(void) {
    uint32_t thread = __atomic_load_n(&helper.thread, __ATOMIC_ACQUIRE);
    if (GS_CALL(SYS_tgkill, GS_CALL(SYS_getpid), thread, 0) != -ESRCH) /* of thread 0, which none is, -EINVAL */
        return false;
    if (__atomic_exchange_n(&helper.entered, false, __ATOMIC_RELAXED))
        gs_trim_leave();
    return true;
}

bool gs_python_trim(uint64_t until) {
    bool there = __atomic_load_n(&helper.busy, __ATOMIC_ACQUIRE) != 0;
    if (there && has_died())
        there = false;
    if (!there) {
        if (!find_functions() || !is_running())
            return false;
        __atomic_store_n(&helper.thread, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&helper.busy, 1, __ATOMIC_RELEASE);
        if (!gs_thread_start(help, 0)) {
            __atomic_store_n(&helper.busy, 0, __ATOMIC_RELAXED);
            return false;
        }
    }
    uint64_t now;
    while (__atomic_load_n(&helper.busy, __ATOMIC_ACQUIRE) != 0 && (now = gs_now_ms()) < until)
        gs_futex_wait(&helper.busy, 1, until - now);
    return true;
}

GS_AT(fork) {
    memset(&helper, 0, sizeof helper);
}
