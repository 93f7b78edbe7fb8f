"""A module like pynvml, with one invented GPU: each sample it is a little busier. ``lacks``: names
of functions that this GPU does not answer."""

from types import SimpleNamespace


class FakeNvml:
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    NVML_TEMPERATURE_THRESHOLD_SLOWDOWN = 1
    (
        NVML_GPM_METRIC_SM_UTIL,
        NVML_GPM_METRIC_SM_OCCUPANCY,
        NVML_GPM_METRIC_ANY_TENSOR_UTIL,
        NVML_GPM_METRIC_DRAM_BW_UTIL,
    ) = (2, 3, 5, 10)
    NVML_GPM_METRICS_GET_VERSION = 1

    class NVMLError(Exception):
        pass

    def __init__(self, lacks=(), gpm=True, mask=0x4):
        self.lacks, self.gpm, self.mask, self.samples, self.open = set(lacks), gpm, mask, 0, 0

    def __getattribute__(self, name):
        if name.startswith("nvml") and name in object.__getattribute__(self, "lacks"):

            def refuse(*arguments):
                raise FakeNvml.NVMLError("Not Supported")

            return refuse
        return object.__getattribute__(self, name)

    def nvmlInit(self):
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlDeviceGetHandleByIndex(self, index):
        if index:
            raise self.NVMLError("Invalid Argument")
        return "handle"

    def nvmlDeviceGetHandleByUUID(self, uuid):
        return "handle"

    def nvmlDeviceGetName(self, handle):
        return b"Invented 100"

    def nvmlDeviceGetUtilizationRates(self, handle):
        self.samples += 1
        return SimpleNamespace(gpu=10 * self.samples, memory=5)

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(used=3 << 30, total=12 << 30)

    def nvmlDeviceGetClockInfo(self, handle, kind):
        return {1: 1500, 2: 2600}[kind]

    def nvmlDeviceGetMaxClockInfo(self, handle, kind):
        return 2000

    def nvmlDeviceGetPowerUsage(self, handle):
        return 350_000

    def nvmlDeviceGetEnforcedPowerLimit(self, handle):
        return 700_000

    def nvmlDeviceGetTemperature(self, handle, kind):
        return 55

    def nvmlDeviceGetMarginTemperature(self, handle):
        return 30

    def nvmlDeviceGetTemperatureThreshold(self, handle, kind):
        return {1: 87}[kind]

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle):
        return self.mask

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return [SimpleNamespace(pid=4711, usedGpuMemory=512 << 20)]

    def nvmlGpmQueryDeviceSupport(self, handle):
        return SimpleNamespace(isSupportedDevice=int(self.gpm))

    def nvmlGpmSampleAlloc(self):
        return SimpleNamespace()

    def nvmlGpmSampleGet(self, handle, sample):
        return sample

    def c_nvmlGpmMetricsGet_t(self):
        return SimpleNamespace(metrics=[SimpleNamespace(nvmlReturn=0, value=0.0) for _ in range(8)])

    def nvmlGpmMetricsGet(self, request):
        for metric in request.metrics[: request.numMetrics]:
            metric.value = 8.0 * metric.metricId
            metric.nvmlReturn = 3 if metric.metricId == self.NVML_GPM_METRIC_SM_OCCUPANCY else 0
        return request
