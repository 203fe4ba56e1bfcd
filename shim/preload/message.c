/* message.c: messages by write(2), built on the stack.
 *
 * Nothing here allocates, takes a lock or uses stdio: a hook may run while the program holds any lock of its own.
 * A message is one write, so that those of several processes do not mix within a line.
 */
#include "message.h"

#include <stdbool.h>
#include <string.h>

#include "moments.h"
#include "system.h"

static enum gs_level wanted = GS_WARNING;

static struct {
    uint64_t last_ms;
    uint32_t held_back;
} rate[GS_SAY_KINDS];

void gs_message_set_level(enum gs_level level) {
    __atomic_store_n(&wanted, level, __ATOMIC_RELAXED);
}

GS_AT(fork) {
    memset(rate, 0, sizeof rate);
}

void gs_text_add(struct gs_text *text, const char *string) {
    while (*string != '\0' && text->length < sizeof text->bytes)
        text->bytes[text->length++] = *string++;
}

void gs_text_number(struct gs_text *text, uint64_t number) {
    char digits[24];
    size_t at = sizeof digits;
    digits[--at] = '\0';
    do {
        digits[--at] = (char)('0' + number % 10);
        number /= 10;
    } while (number != 0);
    gs_text_add(text, digits + at);
}

const char *gs_text_ended(struct gs_text *text) {
    text->bytes[text->length < sizeof text->bytes ? text->length : sizeof text->bytes - 1] = '\0';
    return text->bytes;
}

/* As gpushare.quantity.format_bytes writes it. */
void gs_text_bytes(struct gs_text *text, uint64_t amount) {
    static const struct {
        const char *name;
        unsigned shift;
    } units[] = {{" GiB", 30}, {" MiB", 20}, {" KiB", 10}};
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        uint64_t size = 1ull << units[i].shift;
        if (amount < size - size / 20480) /* a hair under a unit would else be shown as 1024.0 of the one below */
            continue;
        uint64_t tenths = (uint64_t)(((unsigned __int128)amount * 10 + size / 2) >> units[i].shift);
        gs_text_number(text, tenths / 10);
        gs_text_add(text, ".");
        gs_text_number(text, tenths % 10);
        gs_text_add(text, units[i].name);
        return;
    }
    gs_text_number(text, amount);
    gs_text_add(text, " B");
}

/* How many of the kind were held back before this one; -1: this one is, too. */
static int64_t pass(enum gs_message_kind kind) {
    uint64_t now = gs_now_ms() + 1; /* never 0, which means: none yet */
    uint64_t last = __atomic_load_n(&rate[kind].last_ms, __ATOMIC_RELAXED);
    bool early = last != 0 && now - last < 1000;
    if (early || !__atomic_compare_exchange_n(&rate[kind].last_ms, &last, now, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
        __atomic_fetch_add(&rate[kind].held_back, 1, __ATOMIC_RELAXED);
        return -1;
    }
    return __atomic_exchange_n(&rate[kind].held_back, 0, __ATOMIC_RELAXED);
}

/* Only if it can be written at once and has a reader: a full pipe would stop the program, and a pipe without a reader
 * would end it (SIGPIPE). A message is shorter than the room that a writable pipe has. */
static void write_at_once(const char *bytes, size_t length) {
    struct pollfd standard_error = {.fd = STDERR_FILENO, .events = POLLOUT};
    struct timespec now = {0};
    if (GS_CALL(SYS_ppoll, &standard_error, 1, &now, NULL, 0) != 1 || standard_error.revents != POLLOUT)
        return;
    while (GS_CALL(SYS_write, STDERR_FILENO, bytes, length) == -EINTR)
        continue;
}

void gs_say(enum gs_level level, enum gs_message_kind kind, const struct gs_text *text) {
    if (level > __atomic_load_n(&wanted, __ATOMIC_RELAXED))
        return;
    int64_t held_back = pass(kind);
    if (held_back < 0)
        return;
    struct gs_text out = {0};
    if (held_back > 0) {
        gs_text_add(&out, "gpushare: ");
        gs_text_number(&out, (uint64_t)held_back);
        gs_text_add(&out, held_back == 1 ? " more message like the next\n" : " more messages like the next\n");
    }
    gs_text_add(&out, "gpushare: ");
    size_t room = sizeof out.bytes - 1 - out.length; /* the last byte is for the newline */
    size_t length = text->length < room ? text->length : room;
    while (length > 0 && text->bytes[length - 1] == '\n')
        length--;
    memcpy(out.bytes + out.length, text->bytes, length);
    out.length += length;
    out.bytes[out.length++] = '\n';
    write_at_once(out.bytes, out.length);
}

void gs_say_line(enum gs_level level, enum gs_message_kind kind, const char *line) {
    struct gs_text text = {0};
    gs_text_add(&text, line);
    gs_say(level, kind, &text);
}
