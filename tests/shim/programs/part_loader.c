/* part_loader.c: symbol tables as linkers write them, and the loader's own list of libraries. */
#define _GNU_SOURCE /* RTLD_NEXT */
#include "part.h"

#include <sys/auxv.h>

/* What the kernel has told the program; 0: what it really has. */
static unsigned long headers_at, headers_count;

static unsigned long told(unsigned long what) {
    return headers_count == 0 ? getauxval(what) : what == AT_PHDR ? headers_at : what == AT_PHNUM ? headers_count : 0;
}

#define getauxval(what) told(what)
#include "loader.c"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST 40

/* A library's symbols: name, whether the library only needs it, whether this version is an old one. */
struct symbol {
    const char *name;
    bool undefined, hidden;
    uintptr_t value;
};

static struct {
    ElfW(Sym) table[MOST + 1];
    ElfW(Half) versions[MOST + 1];
    char names[2048];
    uint32_t hash[4 + 4 + 16 + MOST];
} built;

static uint32_t bucket_of(const struct symbol *symbol, uint32_t buckets) {
    return gnu_hash(symbol->name) % buckets;
}

/* As a linker does it: undefined symbols first, then the others in the order of their buckets. */
static struct symbols build(const struct symbol *of, size_t count, uint32_t buckets, uint32_t bloom, bool versions) {
    memset(&built, 0, sizeof built);
    uint32_t *bucket = built.hash + 4 + 2 * bloom, *chain = bucket + buckets;
    uint32_t next = 1, first;
    size_t end = 1;
    for (size_t i = 0; i < count; i++)
        next += of[i].undefined;
    first = next;
    memcpy(built.hash, (uint32_t[]){buckets, first, bloom, 6}, 16);
    uint32_t none = 1;
    for (size_t i = 0; i < count; i++)
        if (of[i].undefined)
            built.table[none++] = (ElfW(Sym)){.st_name = (uint32_t)end, .st_shndx = SHN_UNDEF},
            end += (size_t)sprintf(built.names + end, "%s", of[i].name) + 1;
    for (uint32_t b = 0; b < buckets; b++) {
        uint32_t begun = next;
        for (size_t i = 0; i < count; i++) {
            if (of[i].undefined || bucket_of(&of[i], buckets) != b)
                continue;
            built.table[next] = (ElfW(Sym)){.st_name = (uint32_t)end, .st_shndx = 1, .st_value = of[i].value};
            built.versions[next] = of[i].hidden ? 0x8002 : 2;
            chain[next - first] = gnu_hash(of[i].name) & ~1u;
            end += (size_t)sprintf(built.names + end, "%s", of[i].name) + 1;
            next++;
        }
        if (next > begun) {
            bucket[b] = begun;
            chain[next - 1 - first] |= 1;
        }
    }
    return (struct symbols){built.table, built.names, built.hash, versions ? built.versions : NULL, 0};
}

static uintptr_t value_of(const struct symbols *symbols, const char *name) {
    const ElfW(Sym) *found = find_symbol(symbols, name);
    return found != NULL ? found->st_value : 0;
}

/* Tables of any shape: what is defined is found, and nothing else. */
static void any_table(void) {
    for (int round = 0; round < 3000; round++) {
        struct symbol of[MOST];
        char text[MOST][8];
        size_t count = 1 + any(MOST - 1);
        for (size_t i = 0; i < count; i++) {
            snprintf(text[i], sizeof text[i], "f%u%c", (unsigned)i, 'a' + (int)any(26));
            of[i] = (struct symbol){text[i], any(4) == 0, false, 100 + i};
        }
        struct symbols symbols = build(of, count, 1 + any(7), any(3), any(2));
        for (size_t i = 0; i < count; i++) {
            REQUIRE(value_of(&symbols, text[i]) == (of[i].undefined ? 0 : of[i].value));
            char longer[12], shorter[8];
            snprintf(longer, sizeof longer, "%sx", text[i]);
            snprintf(shorter, sizeof shorter, "%.*s", (int)strlen(text[i]) - 1, text[i]);
            REQUIRE(value_of(&symbols, longer) == 0 && value_of(&symbols, shorter) == 0);
        }
    }
}

static void versions(void) {
    const struct symbol both[] = {{"old_and_new", false, true, 1}, {"old_and_new", false, false, 2}};
    const struct symbol turned[] = {{"old_and_new", false, false, 2}, {"old_and_new", false, true, 1}};
    const struct symbol olds[] = {{"old", false, true, 3}, {"f", false, false, 4}};
    struct symbols symbols = build(both, 2, 1, 1, true);
    REQUIRE(value_of(&symbols, "old_and_new") == 2);
    symbols = build(turned, 2, 1, 1, true);
    REQUIRE(value_of(&symbols, "old_and_new") == 2);
    symbols = build(olds, 2, 1, 1, true);
    REQUIRE(value_of(&symbols, "old") == 3 && value_of(&symbols, "f") == 4);
    symbols = build(both, 2, 1, 1, false); /* without versions the first one */
    REQUIRE(value_of(&symbols, "old_and_new") == 1);
    symbols = build(both, 0, 0, 1, true); /* a library without functions */
    REQUIRE(value_of(&symbols, "old_and_new") == 0);
}

/* Two names with one hash, and two hashes that differ in the bit that ends a chain. */
static void collisions(void) {
    REQUIRE(gnu_hash("") == 5381 && gnu_hash("printf") == 0x156b2bb8 && gnu_hash("exit") == 0x7c967e3f);
    REQUIRE(gnu_hash("\xff") == 5381 * 33 + 255);
    REQUIRE(gnu_hash("ab") == gnu_hash("bA") && (gnu_hash("a") ^ gnu_hash("b")) == 1);
    const struct symbol same[] = {
        {"ab", false, false, 1}, {"bA", false, false, 2}, {"b", false, false, 3}, {"a", false, false, 4}};
    for (uint32_t buckets = 1; buckets < 4; buckets++) {
        struct symbols symbols = build(same, 4, buckets, 1, true);
        for (size_t i = 0; i < 4; i++)
            REQUIRE(value_of(&symbols, same[i].name) == same[i].value);
    }
    REQUIRE(is_same("", "") && is_same("a", "a") && !is_same("a", "ab") && !is_same("ab", "a") && !is_same("", "a"));
}

/* What a library's dynamic section says: glibc has added the library's address already, other loaders have not. */
static void sections(void) {
    const uintptr_t base = 0x700000;
    for (int relocated = 0; relocated < 2; relocated++) {
        uintptr_t more = relocated ? base : 0;
        ElfW(Dyn) dynamic[] = {{DT_SYMTAB, {0x100 + more}}, {DT_STRTAB, {0x200 + more}}, {DT_GNU_HASH, {0x300 + more}},
                               {DT_VERSYM, {0x400 + more}}, {DT_SONAME, {17}},           {DT_NULL, {0}},
                               {DT_SYMTAB, {0x900 + more}}};
        struct link_map library = {.l_addr = base, .l_ld = dynamic};
        struct symbols symbols = symbols_of(&library);
        REQUIRE((uintptr_t)symbols.table == base + 0x100 && (uintptr_t)symbols.names == base + 0x200);
        REQUIRE((uintptr_t)symbols.gnu_hash == base + 0x300 && (uintptr_t)symbols.versions == base + 0x400);
        REQUIRE(symbols.soname == 17);
    }
    ElfW(Dyn) at_its_start[] = {{DT_SYMTAB, {base}}, {DT_NULL, {0}}};
    struct link_map library = {.l_addr = base, .l_ld = at_its_start};
    REQUIRE((uintptr_t)symbols_of(&library).table == base && symbols_of(&library).names == NULL);
}

/* In this process: what the loader's own search finds after the program. */
static void in_this_process(void) {
    static const char *const some[] = {"dlsym",  "dlvsym", "dlmopen",           "getpid",  "pthread_cond_wait",
                                       "setenv", "qsort",  "__register_atfork", "no_such", "main"};
    REQUIRE(first_library() != NULL && first_library()->l_ld == _DYNAMIC);
    for (size_t i = 0; i < sizeof some / sizeof *some; i++)
        REQUIRE(find_next(some[i]) == dlsym(RTLD_NEXT, some[i]));
    for (int again = 0; again < 2; again++) {
        REQUIRE(gs_loader(GS_DLSYM) == dlsym(RTLD_NEXT, "dlsym") && gs_loader(GS_DLVSYM) == dlsym(RTLD_NEXT, "dlvsym"));
        REQUIRE(gs_loader(GS_DLMOPEN) == dlsym(RTLD_NEXT, "dlmopen") &&
                gs_loader(GS_DLOPEN) == dlsym(RTLD_NEXT, "dlopen"));
        REQUIRE(gs_loader(GS_DLCLOSE) == dlsym(RTLD_NEXT, "dlclose") &&
                gs_loader(GS_DLADDR) == dlsym(RTLD_NEXT, "dladdr"));
    }
    void *library = gs_real_dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
    REQUIRE(library != NULL && gs_real_dlsym(library, "getppid") == (void *)getppid && gs_real_dlclose(library) == 0);
    REQUIRE(gs_real_dlvsym(RTLD_DEFAULT, "getppid", "GLIBC_0") == NULL && nothing() == NULL);
    struct gs_library where = {0};
    void *function = dlsym(RTLD_NEXT, "getppid");
    REQUIRE(gs_library_at(function, &where) && strstr(where.file, "libc") != NULL && where.base != NULL);
    REQUIRE(where.symbol != NULL && strcmp(where.symbol, "getppid") == 0);
    REQUIRE(gs_library_at((char *)function + 1, &where) && where.symbol == NULL && !gs_library_at((void *)1, &where));
    REQUIRE(!gs_is_second_copy());
}

/* ---- a process that is made up ---------------------------------------------------------------------- */

enum { PROGRAM, BEFORE, US, AFTER, LAST, PLACES };
static struct link_map places[PLACES];
static ElfW(Dyn) dynamics[PLACES][8];
static struct r_debug debug;
static struct {
    ElfW(Phdr) headers[4];
    ElfW(Dyn) dynamic[4];
} program;

/* A library with one table of symbols, the one that was built last. */
static void put(int place, const struct symbols *symbols, uint64_t soname) {
    ElfW(Dyn) *at = dynamics[place];
    if (symbols->table != NULL)
        *at++ = (ElfW(Dyn)){DT_SYMTAB, {(uintptr_t)symbols->table}};
    if (symbols->names != NULL)
        *at++ = (ElfW(Dyn)){DT_STRTAB, {(uintptr_t)symbols->names}};
    if (symbols->gnu_hash != NULL)
        *at++ = (ElfW(Dyn)){DT_GNU_HASH, {(uintptr_t)symbols->gnu_hash}};
    if (soname != 0)
        *at++ = (ElfW(Dyn)){DT_SONAME, {soname}};
    *at = (ElfW(Dyn)){DT_NULL, {0}};
    places[place].l_addr = 16; /* small, so that nothing is moved by it */
}

/* Nothing has any symbols; we are in the middle. `moves`: the program was not linked for where it is. */
static void begin(bool moves) {
    memset(dynamics, 0, sizeof dynamics);
    for (int i = 0; i < PLACES; i++)
        places[i] = (struct link_map){.l_ld = i == US ? _DYNAMIC : dynamics[i],
                                      .l_next = i + 1 < PLACES ? &places[i + 1] : NULL};
    debug = (struct r_debug){.r_map = places};
    uintptr_t headers = (uintptr_t)program.headers, dynamic = (uintptr_t)program.dynamic,
              linked_at = moves ? 64 : headers;
    memset(&program, 0, sizeof program);
    program.headers[0] = (ElfW(Phdr)){.p_type = moves ? PT_PHDR : PT_LOAD, .p_vaddr = linked_at};
    program.headers[1] = (ElfW(Phdr)){.p_type = PT_LOAD, .p_vaddr = 3};
    program.headers[2] = (ElfW(Phdr)){.p_type = PT_DYNAMIC, .p_vaddr = dynamic - headers + linked_at};
    program.headers[3] = (ElfW(Phdr)){.p_type = PT_DYNAMIC, .p_vaddr = 1}; /* not counted */
    program.dynamic[0] = (ElfW(Dyn)){DT_SONAME, {1}};
    program.dynamic[1] = (ElfW(Dyn)){DT_DEBUG, {(uintptr_t)&debug}};
    headers_at = headers;
    headers_count = 3;
}

static void the_list(void) {
    for (int moves = 0; moves < 2; moves++) {
        begin(moves);
        REQUIRE(first_library() == places);
        program.dynamic[1].d_un.d_ptr = 0; /* there is no loader yet */
        REQUIRE(first_library() == NULL && find_next("f") == NULL && !gs_is_second_copy());
        program.dynamic[1] = (ElfW(Dyn)){DT_NULL, {0}};
        program.dynamic[2] = (ElfW(Dyn)){DT_DEBUG, {(uintptr_t)&debug}};
        REQUIRE(first_library() == NULL);
        headers_count = 2; /* a program that is linked statically */
        REQUIRE(first_library() == NULL);
        headers_count = 3;
        headers_at = 0;
        REQUIRE(first_library() == NULL);
    }
}

/* The first library after us that has the function. */
static void what_comes_next(void) {
    const struct symbol one[] = {{"f", false, false, 1000}};
    struct symbols all = build(one, 1, 1, 1, false), parts[] = {all, all, all};
    parts[0].table = NULL;
    parts[1].names = NULL;
    parts[2].gnu_hash = NULL;
    for (int place = 0; place < PLACES; place++) {
        begin(true);
        if (place == US)
            continue;
        put(place, &all, 0);
        REQUIRE(find_next("f") == (place > US ? (void *)1016 : NULL) && find_next("g") == NULL);
    }
    for (int i = 0; i < 3; i++) { /* a library that cannot be read is passed over */
        begin(true);
        put(AFTER, &parts[i], 0);
        REQUIRE(find_next("f") == NULL);
        put(LAST, &all, 0);
        REQUIRE(find_next("f") == (void *)1016);
    }
}

/* Another copy of ours counts if it comes before us. */
static void two_copies(void) {
    for (int place = 0; place < PLACES; place++)
        for (int other = 0; other < 2; other++) {
            begin(true);
            if (place == US)
                continue;
            memset(&built, 0, sizeof built);
            strcpy(built.names + 30, other ? "libgpushare_late.so" : "libgpushare.so");
            struct symbols symbols = {.names = built.names};
            put(place, &symbols, 30);
            REQUIRE(gs_is_second_copy() == (place < US && !other));
        }
    begin(true);
    strcpy(built.names, "libgpushare.so"); /* a library without a name of its own */
    struct symbols symbols = {.names = built.names};
    put(BEFORE, &symbols, 0);
    REQUIRE(!gs_is_second_copy());
    symbols.names = NULL;
    put(BEFORE, &symbols, 30);
    REQUIRE(!gs_is_second_copy());
    places[BEFORE].l_next = NULL; /* we are not in the list: all of it is before us */
    REQUIRE(!gs_is_second_copy());
}

static void (*told_child)(void);
static int asked; /* which function: 1, 2; 0: none */

static int glibc(void (*prepare)(void), void (*parent)(void), void (*child)(void), void *library) {
    REQUIRE(prepare == NULL && parent == NULL && library == NULL);
    told_child = child;
    asked = 1;
    return 0;
}

static int other_c_library(void (*prepare)(void), void (*parent)(void), void (*child)(void)) {
    glibc(prepare, parent, child, NULL);
    asked = 2;
    return 0;
}

static void nobody(void) {}

/* The C library's own way to be told of a fork, under whichever name it has it. */
static void other_c_libraries(void) {
    for (int which = 0; which < 4; which++) {
        const struct symbol of[] = {{"__register_atfork", !(which & 1), false, (uintptr_t)glibc - 16},
                                    {"pthread_atfork", !(which & 2), false, (uintptr_t)other_c_library - 16}};
        struct symbols symbols = build(of, 2, 1, 1, false);
        begin(true);
        put(AFTER, &symbols, 0);
        asked = 0;
        told_child = NULL;
        gs_real_atfork(nobody);
        REQUIRE(asked == (which & 1 ? 1 : which) && told_child == (which == 0 ? NULL : nobody));
    }
    headers_count = 0;
}

/* A function is looked for until it is there, and then no more. In a process of its own, which is left with it. */
static void kept(void) {
    int status;
    pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid != 0) {
        REQUIRE(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 7);
        return;
    }
    begin(true);
    REQUIRE(gs_loader(GS_DLADDR) == (void *)nothing);
    const struct symbol one[] = {{"dladdr", false, false, 1000}};
    struct symbols symbols = build(one, 1, 1, 1, false);
    put(LAST, &symbols, 0);
    REQUIRE(gs_loader(GS_DLADDR) == (void *)1016);
    begin(true);
    REQUIRE(gs_loader(GS_DLADDR) == (void *)1016);
    _exit(7);
}

static int forks;

static void child(void) {
    forks++;
}

static void in_a_child(void) {
    int status;
    gs_real_atfork(child);
    pid_t pid = fork();
    if (pid == 0)
        _exit(forks == 1 ? 7 : 1);
    REQUIRE(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 7 && forks == 0);
}

int main(void) {
    any_table();
    versions();
    collisions();
    sections();
    kept();
    in_this_process();
    in_a_child();
    the_list();
    what_comes_next();
    two_copies();
    other_c_libraries();
    return good();
}
