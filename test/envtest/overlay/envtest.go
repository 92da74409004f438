// Package envtest has the names of controller-runtime's package of that name for package berthtest.
package envtest

import (
	"github.com/berth-dev/berth/berthtest"
)

// The types of controller-runtime's package.
type (
	Environment           = berthtest.Environment
	CRDInstallOptions     = berthtest.CRDInstallOptions
	WebhookInstallOptions = berthtest.WebhookInstallOptions
	ControlPlane          = berthtest.ControlPlane
	APIServer             = berthtest.APIServer
	User                  = berthtest.User
	AuthenticatedUser     = berthtest.AuthenticatedUser
	Arguments             = berthtest.Arguments
)

// The functions of controller-runtime's package.
var (
	EmptyArguments  = berthtest.EmptyArguments
	InstallCRDs     = berthtest.InstallCRDs
	UninstallCRDs   = berthtest.UninstallCRDs
	ReadCRDFiles    = berthtest.ReadCRDFiles
	CreateCRDs      = berthtest.CreateCRDs
	WaitForCRDs     = berthtest.WaitForCRDs
	WaitForWebhooks = berthtest.WaitForWebhooks
)

// parseWebhook is what two specs of the package call, which are of the package itself.
func parseWebhook(options *WebhookInstallOptions) error {
	if err := options.PrepWithoutInstalling(); err != nil {
		return err
	}
	return options.Cleanup()
}
