/* part_copies.c: which libraries count as further copies of the driver: from a list of mappings and a loader that the
 * program makes up. */
#include "part.h"

#include "copies.c"

#include <pthread.h>
#include <sched.h>
#include <sys/ioctl.h>

struct gs_driver gs_driver;
static struct gs_options options = {.active = true};
static struct gs_page page, *page_there = &page;
static char said[8192];
static int says;
static bool may_wake = true, defines = true, opens = true;
static uint32_t woken;

const struct gs_options *gs_options(void) {
    return &options;
}

struct gs_page *gs_client_page(void) {
    return page_there;
}

void gs_text_add(struct gs_text *text, const char *string) {
    size_t length = strlen(string);
    REQUIRE(text->length + length < sizeof text->bytes);
    memcpy(text->bytes + text->length, string, length);
    text->length += (typeof(text->length))length;
}

void gs_say(enum gs_level level, enum gs_message_kind kind, const struct gs_text *text) {
    REQUIRE(level == GS_WARNING && kind == GS_SAY_COPY);
    says++;
    snprintf(said, sizeof said, "%.*s", (int)text->length, text->bytes);
}

/* Libraries of 4096 bytes from these addresses on. */
static struct {
    uintptr_t base;
    const char *file;
} const libraries[] = {{0x100000, "/usr/lib/libcuda.so.1"}, {0x200000, "/opt/copy/libcuda.so.2"}, {0x300000, "/other"}};

bool gs_library_at(const void *address, struct gs_library *library) {
    if (address == (const void *)gs_look_for_copies) {
        *library = (struct gs_library){"/opt/libcuda.so.0", (const void *)0x700000, NULL};
        return true;
    }
    for (size_t i = 0; i < sizeof libraries / sizeof *libraries; i++)
        if ((uintptr_t)address - libraries[i].base < 4096) {
            *library = (struct gs_library){libraries[i].file, (const void *)libraries[i].base, NULL};
            return true;
        }
    return false;
}

bool gs_defines_a_driver(void *handle, const void *base) {
    (void)handle, (void)base;
    return defines;
}

bool gs_may_wake(void) {
    return may_wake;
}

void *gs_driver_handle(void) {
    return (void *)0x77;
}

void *gs_real_dlsym(void *library, const char *symbol) {
    if (library == (void *)0x77 && strcmp(symbol, "cuMemFree_v2") == 0)
        return (void *)0x100020;
    return strcmp(symbol, "cuMemAlloc_v2") == 0 ? (void *)0x100010 : NULL;
}

void *gs_real_dlopen(const char *file, int flags) {
    REQUIRE(strcmp(file, "/opt/copy/libcuda.so.2") == 0 && flags == (RTLD_LAZY | RTLD_LOCAL));
    return opens ? (void *)0x88 : NULL;
}

bool gs_wake(const void *witness, bool open) {
    REQUIRE(witness == (void *)0x100010 && !open);
    woken++;
    return true;
}

void *gs_hook_for(const void *real) {
    return real == (void *)0x100020 ? (void *)0x999 : NULL;
}

static void forget(void) {
    memset(copies, 0, sizeof copies);
    copy_count = 0;
    says = 0;
    said[0] = '\0';
}

/* Which function is another driver's. */
static void whose(void) {
    void *ours = (void *)0x100010, *theirs = (void *)0x200010, *program = (void *)0x300010, *nowhere = (void *)0x10;
    REQUIRE(!gs_is_of_copy(NULL, theirs, program)); /* there is no driver of ours yet */
    gs_driver.cuMemAlloc_v2 = (__typeof__(&cuMemAlloc_v2))ours;
    REQUIRE(gs_is_of_copy(NULL, theirs, program));
    REQUIRE(!gs_is_of_copy(NULL, ours, program) && !gs_is_of_copy(NULL, nowhere, program));
    REQUIRE(!gs_is_of_copy(NULL, NULL, program));
    REQUIRE(!gs_is_of_copy(NULL, theirs, ours)); /* the driver itself asks: a wrapper with its name */
    defines = false;
    REQUIRE(!gs_is_of_copy(NULL, theirs, program));
    add((void *)0x200000, false);
    REQUIRE(!gs_is_of_copy(NULL, theirs, program)); /* only by its file's name */
    add((void *)0x200000, true);
    add((void *)0x200000, false);
    add((void *)0x400000, false);
    REQUIRE(gs_is_of_copy(NULL, theirs, program) && copy_count == 2 && !gs_is_of_copy(NULL, (void *)0x300020, ours));
    REQUIRE(!gs_is_of_copy(NULL, (void *)0x300020, NULL));
    defines = true;
    forget();
}

/* It is answered from ours, and said once. */
static void answered(void) {
    for (int i = 0; i < 2; i++) {
        REQUIRE(gs_instead_of_copy((void *)0x200010, "cuMemFree_v2") == (void *)0x999);
        REQUIRE(gs_instead_of_copy((void *)0x200010, "cuMemAlloc_v2") == (void *)0x100010);
        REQUIRE(gs_instead_of_copy((void *)0x200010, "cuNone") == NULL);
        REQUIRE(says == 1 && page.copies == 1 && copy_count == 1 && copies[0].proved);
        REQUIRE(strcmp(said, "/opt/copy/libcuda.so.2 is another copy of the driver: look-ups in it are answered from "
                             "/usr/lib/libcuda.so.1, on which the limit holds") == 0);
    }
    REQUIRE(gs_instead_of_copy((void *)0x10, "cuMemFree_v2") == (void *)0x999 && says == 1);
    forget();
    page.copies = 9;
    page_there = NULL;
    gs_tell_copies();
    page_there = &page;
    gs_tell_copies();
    REQUIRE(page.copies == 0);
}

static void opened_here(void) {
    REQUIRE(gs_open_copy_here(NULL, (void *)0x200010) && woken == 1);
    opens = false;
    REQUIRE(!gs_open_copy_here(NULL, (void *)0x200010));
    opens = true;
    defines = false;
    REQUIRE(!gs_open_copy_here(NULL, (void *)0x200010));
    defines = true;
    may_wake = false;
    REQUIRE(!gs_open_copy_here(NULL, (void *)0x200010));
    may_wake = true;
    REQUIRE(!gs_open_copy_here(NULL, (void *)0x10) && woken == 1);
}

static void lines_of_maps(void) {
    static const struct {
        const char *line;
        bool first;
        uint64_t start;
        const char *file;
    } of[] = {
        {"7f12ab000000-7f12ab001000 r--p 00000000 08:01 123   /usr/lib/x.so", true, 0x7f12ab000000, "/usr/lib/x.so"},
        {"7f12ab001000-7f12ab002000 r-xp 00001000 08:01 123   /usr/lib/x.so", false, 0x7f12ab001000, "/usr/lib/x.so"},
        {"00400000-00401000 r--p 00000000 08:01 9 /a b c", true, 0x400000, "/a b c"},
        {"7ffd00000000-7ffd00001000 rw-p 00000000 00:00 0   [stack]", false, 0x7ffd00000000, NULL},
        {"7ffd00000000-7ffd00001000 rw-p 00000000 00:00 0", false, 0x7ffd00000000, NULL},
        {"/x", false, 0, NULL},
        {"12/x", false, 0x12, NULL},
        {"1 2/", false, 1, NULL},
        {"", false, 0, NULL},
    };
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        char line[128];
        uint64_t start = 5;
        const char *file = NULL;
        snprintf(line, sizeof line, "%s", of[i].line);
        REQUIRE(first_mapping(line, &start, &file) == of[i].first && start == of[i].start);
        REQUIRE(of[i].file == NULL || strcmp(file, of[i].file) == 0);
    }
    REQUIRE(!has_drivers_name("/libcuda.sX"));
    REQUIRE(has_drivers_name("/usr/lib/libcuda.so") && has_drivers_name("/libcuda.so.1.1"));
    REQUIRE(!has_drivers_name("/usr/lib/libcudart.so") && !has_drivers_name("/libcuda.so/x") &&
            !has_drivers_name("/mylibcuda.so"));
}

struct writing {
    const char *text;
    size_t length, piece;
    int pipe;
};

/* A piece once the last one has been read. */
static void *write_pieces(void *data) {
    struct writing *writing = data;
    for (size_t at = 0; at < writing->length; at += writing->piece) {
        size_t rest = writing->length - at;
        int unread = 1;
        REQUIRE(write(writing->pipe, writing->text + at, rest < writing->piece ? rest : writing->piece) > 0);
        while (ioctl(writing->pipe, FIONREAD, &unread) == 0 && unread != 0)
            sched_yield();
    }
    close(writing->pipe);
    return NULL;
}

/* The maps as the kernel writes them, in pieces of any size, with lines that are too long for a library's. */
static void maps(void) {
    static const char driver[] = "00500000-00501000 r--p 00000000 08:01 1 /opt/libcuda.so.1\n"
                                 "00700000-00701000 r--p 00000000 08:01 4 /opt/libcuda.so.0\n" /* the library itself */
                                 "00501000-00502000 r-xp 00001000 08:01 1 /opt/libcuda.so.1\n"
                                 "00100000-00101000 r--p 00000000 08:01 2 /usr/lib/libcuda.so.1\n";
    for (size_t longer = 0; longer < 4; longer++) {
        for (size_t piece = 1; piece <= 8000; piece *= piece == 1 ? 61 : 11) {
            if (piece == 1 && longer != 0)
                continue;
            pthread_t writer;
            static char text[20000];
            size_t length = 0;
            int pipes[2];
            forget();
            for (int i = 0; i < 40; i++)
                length += (size_t)sprintf(text + length, "%08x-%08x r--p 00000000 08:01 3 /lib/other%d.so\n", i << 12,
                                          (i + 1) << 12, i);
            if (longer != 0) { /* 1: within a buffer; 2: no line of a library; 3: up to the end of a buffer, nearly */
                length += (size_t)sprintf(text + length, "00600000-00601000 r--p 00000000 08:01 1 /");
                size_t more = longer == 1 ? 3000 : longer == 2 ? 9000 : 4075 - length;
                memset(text + length, 'x', more);
                length += more;
                length += (size_t)sprintf(text + length, "\n");
            }
            length += (size_t)sprintf(text + length, "%s", driver);
            REQUIRE(pipe(pipes) == 0);
            struct writing writing = {text, length, piece, pipes[1]};
            pthread_create(&writer, NULL, write_pieces, &writing);
            look_at_maps(pipes[0], (void *)0x100000);
            pthread_join(writer, NULL);
            close(pipes[0]);
            REQUIRE(copy_count == 1 && copies[0].base == (void *)0x500000 && !copies[0].proved && says == 1);
            REQUIRE(strstr(said, "/opt/libcuda.so.1 is another copy of the driver in this process: ") == said);
            REQUIRE(strstr(said, "hint: load one driver, in the program's own namespace") != NULL);
        }
    }
    forget();
    for (uintptr_t i = 0; i < MOST + 3; i++)
        REQUIRE(add((void *)(i + 1), false) == (i < MOST));
    REQUIRE(copy_count == MOST && !is_proved((void *)(MOST + 1)));
    forget();
}

/* The process's own maps are read, ours is not counted, and not more often than ten times a second. */
static void looks(void) {
    int before = descriptors();
    page.copies = 7;
    options.active = false;
    gs_look_for_copies();
    REQUIRE(page.copies == 7);
    options.active = true;
    gs_look_for_copies();
    REQUIRE(page.copies == 0 && copy_count == 0 && descriptors() == before);
    page.copies = 7;
    close(STDIN_FILENO); /* in a program that has none the next descriptor is 0 */
    gs_look_for_copies();
    REQUIRE(page.copies == 0 && open("/dev/null", O_RDONLY) == STDIN_FILENO);
    page.copies = 7;
    gs_look_now_and_then();
    REQUIRE(page.copies == 0);
    page.copies = 7;
    gs_look_now_and_then();
    REQUIRE(page.copies == 7 && next_look <= gs_now_ms() + LOOK_MS && next_look + 50 > gs_now_ms());
    gs_sleep_us(LOOK_MS * 1000);
    gs_look_now_and_then();
    REQUIRE(page.copies == 0);
    copies_lock.held = 1;
    at_fork();
    REQUIRE(copies_lock.held == 0);
}

int main(void) {
    whose();
    answered();
    opened_here();
    lines_of_maps();
    maps();
    looks();
    return good();
}
