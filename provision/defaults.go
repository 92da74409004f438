package provision

import "time"

// The values of options that are omitted.
const (
	// DefaultResyncPeriod is used when option function ResyncPeriod is omitted.
	DefaultResyncPeriod = 15 * time.Minute
	// DefaultThreadiness is used when option function Threadiness is omitted.
	DefaultThreadiness = 4
	// DefaultExponentialBackOffOnError is used when option function ExponentialBackOffOnError is omitted.
	DefaultExponentialBackOffOnError = true
	// DefaultCreateProvisionedPVRetryCount is used when option function CreateProvisionedPVRetryCount is omitted.
	DefaultCreateProvisionedPVRetryCount = 5
	// DefaultCreateProvisionedPVInterval is used when option function CreateProvisionedPVInterval is omitted.
	DefaultCreateProvisionedPVInterval = 10 * time.Second
	// DefaultFailedProvisionThreshold is used when option function FailedProvisionThreshold is omitted.
	DefaultFailedProvisionThreshold = 15
	// DefaultFailedDeleteThreshold is used when option function FailedDeleteThreshold is omitted.
	DefaultFailedDeleteThreshold = 15
	// DefaultInfeasibleRetryInterval is used when option function InfeasibleRetryInterval is omitted.
	DefaultInfeasibleRetryInterval = 5 * time.Minute
	// DefaultLeaderElection is used when option function LeaderElection is omitted.
	DefaultLeaderElection = true
	// DefaultLeaseDuration is used when option function LeaseDuration is omitted.
	DefaultLeaseDuration = 15 * time.Second
	// DefaultRenewDeadline is used when option function RenewDeadline is omitted.
	DefaultRenewDeadline = 10 * time.Second
	// DefaultRetryPeriod is used when option function RetryPeriod is omitted.
	DefaultRetryPeriod = 2 * time.Second
	// DefaultMetricsPort is used when option function MetricsPort is omitted: no metrics server.
	DefaultMetricsPort = 0
	// DefaultMetricsAddress is used when option function MetricsAddress is omitted.
	DefaultMetricsAddress = "0.0.0.0"
	// DefaultMetricsPath is used when option function MetricsPath is omitted.
	DefaultMetricsPath = "/metrics"
)

// Names that other parts of Kubernetes share with this package.
const (
	annAlphaSelectedNode     = "volume.alpha.kubernetes.io/selected-node"
	finalizerVolume          = "external-provisioner.volume.kubernetes.io/finalizer"
	reasonProvisioning       = "Provisioning"
	reasonProvisioningFailed = "ProvisioningFailed"
	reasonProvisioningOK     = "ProvisioningSucceeded"
	reasonCleanupFailed      = "ProvisioningCleanupFailed"
	reasonVolumeFailedDelete = "VolumeFailedDelete"
	timelineOwner            = "provision"
	volumeNamePrefix         = "pvc-"
	claimKind, volumeKind    = "PersistentVolumeClaim", "PersistentVolume"
	coreVersion              = "v1"
)

// StageQueued is the timeline stage of a claim from when it is ours until the call of the provisioner begins.
const StageQueued = "ProvisionQueued"
