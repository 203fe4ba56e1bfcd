"""Each function that the library replaces may be the first that a program calls: then it finds the driver first."""

from __future__ import annotations

import json

import pytest

import functions_def

PROGRAM = """
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
extern int cuInit(unsigned flags);
#define GS_FN(base, symbol, since, stream, family, rule) extern int symbol() __attribute__((weak));
#include "functions.def"
typedef int (*call)(void *, void *, void *, void *, void *, void *, void *, void *);
static const struct { const char *name; call function; } all[] = {
#define GS_FN(base, symbol, since, stream, family, rule) {#symbol, (call)symbol},
#include "functions.def"
};
int main(int argc, char **argv) {
    (void)argv;
    printf("{");
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (all[i].function == NULL)
            continue;
        int status = 0;
        fflush(stdout);
        pid_t child = fork();
        if (child == 0)
            _exit(argc == 1 && cuInit(0) != 0
                      ? 250
                      : all[i].function(NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL) & 255);
        waitpid(child, &status, 0);
        printf("%s\\"%s\\": [%d, %d]", i ? ", " : "", all[i].name, WIFSIGNALED(status), WEXITSTATUS(status));
    }
    puts("}");
    return 0;
}
"""


@pytest.mark.parametrize("uninitialised", [(), ("no cuInit",)], ids=["after cuInit", "alone"])
def test_each_hook_may_be_the_first_call_of_a_program(host, compile_c, tmp_path, uninitialised) -> None:
    """With nothing in place of each argument the driver says the same as without us, and nobody crashes."""
    source = tmp_path / "first_call.c"
    source.write_text(PROGRAM)
    driver = host.libraries.driver_dir
    flags = (
        "-Wno-strict-prototypes",
        f"-L{driver}",
        "-Wl,--no-as-needed",
        "-lcuda",
        "-Wl,--unresolved-symbols=ignore-all",
    )
    program = compile_c(str(source), *flags, target="first_call")
    command = [program, *uninitialised]
    alone = host.run(command, LD_PRELOAD=None).said
    hooked = host.run(command, GPUSHARE_LIMIT="4Gi").said
    hooks = {row.symbol for row in functions_def.rows() if row.rule == "HOOK"}
    assert len(hooks & set(alone)) > 90, json.dumps(sorted(hooks - set(alone)))
    assert {name: hooked[name] for name in hooks & set(alone)} == {name: alone[name] for name in hooks & set(alone)}
