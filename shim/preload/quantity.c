/* quantity.c: the grammar of gpushare/quantity.py, which explains it, in C.
 *
 * Both are tested on tests/vectors/quantities.json. The arithmetic is that of integers, rounded down: at most 18
 * digits times 10^9 fit into 128 bits, so nothing overflows before it is refused.
 */
#include "quantity.h"

#include <stddef.h>
#include <string.h>

#define MIN_BYTES    (1ull << 20)
#define MAX_BYTES    (1ull << 50)
#define MAX_DIGITS   18
#define MAX_EXPONENT 30
#define BLANKS       " \t\n\r\v\f"

typedef unsigned __int128 wide;

struct unit {
    const char *name;
    uint64_t bytes;
};

static const struct unit native_units[] = {{"Ki", 1ull << 10},   {"Mi", 1ull << 20},     {"Gi", 1ull << 30},
                                           {"Ti", 1ull << 40},   {"KiB", 1ull << 10},    {"MiB", 1ull << 20},
                                           {"GiB", 1ull << 30},  {"TiB", 1ull << 40},    {"M", 1000000ull},
                                           {"G", 1000000000ull}, {"T", 1000000000000ull}};
static const struct unit runai_units[] = {{"Ki", 1ull << 10},   {"Mi", 1ull << 20},     {"Gi", 1ull << 30},
                                          {"Ti", 1ull << 40},   {"k", 1000ull},         {"M", 1000000ull},
                                          {"G", 1000000000ull}, {"T", 1000000000000ull}};

/* A piece of the text, not ended by a zero byte. */
struct span {
    const char *at;
    size_t length;
};

struct number {
    uint64_t digits; /* the number is digits / 10^scale */
    unsigned scale;
    bool pointed;
};

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static bool is(struct span span, const char *word) {
    return strlen(word) == span.length && memcmp(span.at, word, span.length) == 0;
}

static bool is_blank(char c) {
    return c != '\0' && strchr(BLANKS, c) != NULL;
}

static struct span trim(const char *text) {
    while (is_blank(*text))
        text++;
    size_t length = strlen(text);
    while (length > 0 && is_blank(text[length - 1]))
        length--;
    return (struct span){text, length};
}

static struct span skip(struct span span, size_t count) {
    return (struct span){span.at + count, span.length - count};
}

static wide power_of_ten(unsigned exponent) {
    wide power = 1;
    while (exponent-- > 0)
        power *= 10;
    return power;
}

static bool in_range(struct gs_quantity *quantity, wide bytes) {
    if (bytes < MIN_BYTES || bytes > MAX_BYTES)
        return false;
    *quantity = (struct gs_quantity){GS_KIND_BYTES, (uint64_t)bytes};
    return true;
}

/* Takes digits with an optional point off the front. */
static bool split_number(struct span *text, struct number *number) {
    *number = (struct number){0};
    size_t at = 0, digits = 0;
    for (; at < text->length; at++) {
        char c = text->at[at];
        if (c == '.' && !number->pointed) {
            number->pointed = true;
        } else if (is_digit(c)) {
            if (++digits > MAX_DIGITS)
                return false;
            number->digits = number->digits * 10 + (uint64_t)(c - '0');
            number->scale += number->pointed;
        } else {
            break;
        }
    }
    *text = skip(*text, at);
    return digits > 0;
}

static bool share(struct gs_quantity *quantity, struct number number, uint64_t unit) {
    wide scaled = (wide)number.digits * unit, one = power_of_ten(number.scale);
    uint64_t parts = (uint64_t)(scaled / one);
    if (scaled > GS_SHARE_PARTS * one || parts == 0)
        return false;
    *quantity = (struct gs_quantity){GS_KIND_SHARE, parts};
    return true;
}

static bool with_exponent(struct gs_quantity *quantity, struct number number, struct span rest) {
    rest = skip(rest, 1);
    if (rest.length > 0 && rest.at[0] == '+')
        rest = skip(rest, 1);
    if (rest.length < 1 || rest.length > 2 || !is_digit(rest.at[0]) || !is_digit(rest.at[rest.length - 1]))
        return false;
    unsigned exponent = (unsigned)(rest.at[0] - '0');
    if (rest.length == 2)
        exponent = exponent * 10 + (unsigned)(rest.at[1] - '0');
    if (exponent > MAX_EXPONENT)
        return false;
    if (exponent < number.scale)
        return in_range(quantity, number.digits / power_of_ten(number.scale - exponent));
    /* 10^16 is above MAX_BYTES already, whatever the digits. */
    unsigned left = exponent - number.scale;
    return in_range(quantity, number.digits * power_of_ten(left < 16 ? left : 16));
}

static bool bare(struct gs_quantity *quantity, struct number number) {
    if (number.digits <= power_of_ten(number.scale))
        return share(quantity, number, GS_SHARE_PARTS);
    return !number.pointed && in_range(quantity, number.digits);
}

static bool with_unit(struct gs_quantity *quantity, struct number number, struct span name, const struct unit *units,
                      size_t count, bool *known) {
    for (size_t i = 0; i < count; i++) {
        if (is(name, units[i].name)) {
            *known = true;
            return in_range(quantity, (wide)number.digits * units[i].bytes / power_of_ten(number.scale));
        }
    }
    *known = false;
    return false;
}

static bool bare_or_exponent(struct gs_quantity *quantity, struct number number, struct span rest) {
    if (rest.length == 0)
        return bare(quantity, number);
    return (rest.at[0] == 'e' || rest.at[0] == 'E') && with_exponent(quantity, number, rest);
}

static bool parse_native(struct span text, struct gs_quantity *quantity) {
    if (is(text, "max") || is(text, "none")) {
        *quantity = (struct gs_quantity){is(text, "max") ? GS_KIND_MAX : GS_KIND_NONE, 0};
        return true;
    }
    struct number number;
    bool known;
    if (!split_number(&text, &number))
        return false;
    struct span unit = text;
    while (unit.length > 0 && is_blank(unit.at[0]))
        unit = skip(unit, 1);
    if (is(unit, "%"))
        return share(quantity, number, GS_SHARE_PARTS / 100);
    bool good = with_unit(quantity, number, unit, native_units, sizeof native_units / sizeof *native_units, &known);
    return known ? good : bare_or_exponent(quantity, number, text);
}

static bool parse_runai(struct span text, struct gs_quantity *quantity) {
    struct number number;
    bool known;
    if (!split_number(&text, &number))
        return false;
    bool good = with_unit(quantity, number, text, runai_units, sizeof runai_units / sizeof *runai_units, &known);
    return known ? good : bare_or_exponent(quantity, number, text);
}

static bool parse_mib(struct span text, struct gs_quantity *quantity) {
    struct number number;
    if (!split_number(&text, &number) || text.length > 0 || number.pointed)
        return false;
    return in_range(quantity, (wide)number.digits << 20);
}

static bool parse_hami(struct span text, struct gs_quantity *quantity) {
    struct number number;
    if (!split_number(&text, &number) || text.length > 1 || number.pointed)
        return false;
    unsigned shift = 0;
    if (text.length == 1) {
        switch (text.at[0] | 0x20) {
        case 'k':
            shift = 10;
            break;
        case 'm':
            shift = 20;
            break;
        case 'g':
            shift = 30;
            break;
        default:
            return false;
        }
    }
    if (number.digits == 0) {
        *quantity = (struct gs_quantity){GS_KIND_NONE, 0};
        return true;
    }
    return in_range(quantity, (wide)number.digits << shift);
}

bool gs_quantity_parse(const char *text, enum gs_dialect dialect, struct gs_quantity *quantity) {
    static bool (*const parsers[])(struct span, struct gs_quantity *) = {
        [GS_NATIVE] = parse_native, [GS_RUNAI] = parse_runai, [GS_MIB] = parse_mib, [GS_HAMI] = parse_hami};
    return parsers[dialect](trim(text), quantity);
}

bool gs_duration_parse(const char *text, uint32_t *milliseconds) {
    static const struct unit units[] = {{"ms", 1},      {"s", 1000},    {"", 1000},     {"m", 60000},
                                        {"min", 60000}, {"h", 3600000}, {"d", 86400000}};
    struct span rest = trim(text), start = rest;
    struct number number;
    if (rest.length == 0 || rest.at[0] == '.' || !split_number(&rest, &number))
        return false;
    size_t length = start.length - rest.length, whole = length - number.scale - number.pointed;
    if (whole > 9 || number.scale > 9 || (number.pointed && number.scale == 0))
        return false;
    while (rest.length > 0 && (rest.at[0] == ' ' || rest.at[0] == '\t'))
        rest = skip(rest, 1);
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (is(rest, units[i].name)) {
            wide amount = (wide)number.digits * units[i].bytes / power_of_ten(number.scale);
            *milliseconds = amount > UINT32_MAX ? UINT32_MAX : (uint32_t)amount;
            return true;
        }
    }
    return false;
}
