/* Runs a fuzz target on each file that is named, where no fuzzer is linked. */
#include <stdint.h>
#include <stdio.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int main(int count, char **paths)
{
    static uint8_t data[1u << 20];
    int i;

    for (i = 1; i < count; i++) {
        FILE *file = fopen(paths[i], "rb");

        if (file == NULL)
            return perror(paths[i]), 1;
        printf("%s\n", paths[i]);
        fflush(stdout);
        LLVMFuzzerTestOneInput(data, fread(data, 1, sizeof data, file));
        fclose(file);
    }
    return 0;
}
