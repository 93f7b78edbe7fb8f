extern "C" __global__ void ints(const long long* a, const long long* b, long long* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;
    long long x = a[i], y = b[i]; unsigned long long ux = x, uy = y; int p = (int)x, q = (int)y; unsigned up = p, uq = q;
    long long* o = out + 32 * i;
    o[0]=x+y; o[1]=x-y; o[2]=x*y; o[3]=y? x/y:0; o[4]=y? x%y:0; o[5]=uy? (long long)(ux/uy):0; o[6]=uy?(long long)(ux%uy):0; o[7]=__mul64hi(x,y); o[8]=(long long)__umul64hi(ux,uy);
    o[9]=x<<(y&63); o[10]=x>>(y&63); o[11]=(long long)(ux>>(uy&63)); o[12]=min(x,y)+ (x>y); o[13]=__popcll(ux); o[14]=__clzll(x); o[15]=(long long)__brevll(ux); o[16]=__ffsll(x);
    o[17]=__byte_perm(up,uq,0x5140); o[18]=__funnelshift_l(up,uq,q&31); o[19]=__dp4a(p,q,3); o[20]=(long long)__dp4a(up,uq,3u); o[21]=__mulhi(p,q)+(long long)__umulhi(up,uq); o[22]=__sad(p,q,up); o[23]=__hadd(p,q); o[24]=q? p/q:0; o[25]=q?p%q:0; o[26]=uq? up/uq:0; o[27]=abs(p)+llabs(x); o[28]=__vadd4(up,uq); o[29]=(up>>5)&0x3ff; o[30]=(p<<7)>>20; o[31]=__brev(up)^__popc(uq)^__clz(p);
}
