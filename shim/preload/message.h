/* message.h: what the shim says to the user, on stderr. */
#ifndef GPUSHARE_PRELOAD_MESSAGE_H
#define GPUSHARE_PRELOAD_MESSAGE_H

#include <stddef.h>
#include <stdint.h>

enum gs_level { GS_ERROR, GS_WARNING, GS_INFO, GS_DEBUG };

/* Messages of one kind are held to one a second, so that a loop of refused allocations does not flood a terminal. */
enum gs_message_kind {
    GS_SAY_REFUSED,
    GS_SAY_WAITING,
    GS_SAY_DAEMON,
    GS_SAY_OPTIONS,
    GS_SAY_VARIANT,
    GS_SAY_COPY,
    GS_SAY_TRIM,
    GS_SAY_KINDS
};

/* Text in the making. What does not fit is cut. */
struct gs_text {
    size_t length;
    char bytes[1024];
};

void gs_text_add(struct gs_text *text, const char *string);
void gs_text_number(struct gs_text *text, uint64_t number);
void gs_text_bytes(struct gs_text *text, uint64_t amount); /* 4.0 GiB */
const char *gs_text_ended(struct gs_text *text);           /* as a string, which ends with a zero byte */

/* Say it if the level is wanted and the kind not over its rate. The text has no prefix and no last newline. */
void gs_say(enum gs_level level, enum gs_message_kind kind, const struct gs_text *text);
void gs_say_line(enum gs_level level, enum gs_message_kind kind, const char *line);

void gs_message_set_level(enum gs_level level);
#endif
