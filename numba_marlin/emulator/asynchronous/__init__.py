"""What happens outside of program order: copies in flight, mbarriers, barriers, clusters, proxies."""
