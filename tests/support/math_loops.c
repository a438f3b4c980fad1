/* Lets a test call a function of the runtime's mathematics on whole arrays. */
typedef float (*unary)(float);
typedef float (*binary)(float, float);
void map_unary(unary f, const float *x, float *y, int n);
void map_binary(binary f, const float *x, const float *z, float *y, int n);

void map_unary(unary f, const float *x, float *y, int n)
{
    for (int i = 0; i < n; i++)
        y[i] = f(x[i]);
}

void map_binary(binary f, const float *x, const float *z, float *y, int n)
{
    for (int i = 0; i < n; i++)
        y[i] = f(x[i], z[i]);
}
