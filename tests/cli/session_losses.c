/* Prints the bits of the losses of a session over the records of data.bin: linked with a package's library. */
#include <stdio.h>
#include <string.h>

#include "model.h"
#include "poetc_host.h"

static uint8_t arena[POETC_MODEL_ARENA_BYTES] __attribute__((aligned(64)));
static poetc_session session;

int main(void)
{
    poetc_config config;
    FILE *file = fopen("data.bin", "rb");
    uint32_t i = 0, bits;
    float loss;
    int err;

    memset(&config, 0, sizeof config);
    config.arena = arena;
    config.arena_bytes = sizeof arena;
    err = file == NULL ? POETC_ENOENT : POETC_OK;
    if (!err && POETC_MODEL_STORE_BLOCKS > 0)
        err = poetc_host_open(&config.store, "store.bin", POETC_MODEL_BLOCK_BYTES);
    if (!err)
        err = poetc_session_init(&session, POETC_MODEL_DESCRIPTION, &config);
    while (!err) {
        for (i = 0; i < session.model->train.input_count; i++)
            if (fread(poetc_session_input(&session, &session.model->train, i),
                      session.model->train.inputs[i].size_bytes, 1, file) != 1)
                return 0;
        err = poetc_session_step(&session, NULL, &loss);
        memcpy(&bits, &loss, sizeof bits);
        printf("%08lx\n", (unsigned long)bits);
    }
    fprintf(stderr, "code %d\n", err);
    return 1;
}
