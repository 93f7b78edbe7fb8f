extern "C" __global__ void mathf(const float* x, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;
    float v = x[i];
    float* o = out + 16 * i;
    o[0]=expf(v); o[1]=logf(fabsf(v)+1e-3f); o[2]=sinf(v); o[3]=cosf(v); o[4]=sqrtf(fabsf(v)); o[5]=rsqrtf(fabsf(v)+1.f); o[6]=1.f/(v+100.f); o[7]=v/3.7f;
    o[8]=tanhf(v); o[9]=powf(fabsf(v)+0.5f, 1.3f); o[10]=floorf(v)+ceilf(v)*10+truncf(v)*100+rintf(v)*1000; o[11]=fmodf(v, 1.7f); o[12]=erff(v); o[13]=__expf(v)*__sinf(v); o[14]=fminf(v, 0.3f)+fmaxf(v,-0.2f)+copysignf(2.f,v); o[15]=ldexpf(v, 3)+cbrtf(v)+roundf(v);
}
extern "C" __global__ void mathd(const double* x, double* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;
    double v = x[i];
    double* o = out + 8 * i;
    o[0]=exp(v); o[1]=log(fabs(v)+1e-3); o[2]=sin(v); o[3]=sqrt(fabs(v)); o[4]=1.0/(v+100); o[5]=v/3.7; o[6]=pow(fabs(v)+0.5,1.3); o[7]=floor(v)+fma(v,v,1.0)+(double)(long long)(v*1000)+(float)v;
}
