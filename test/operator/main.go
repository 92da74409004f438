package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
)

func main() {
	dir := flag.String("certificate-dir", "/certificate", "directory for the webhook's certificate")
	host := flag.String("host", "", "name of the webhook's Service, NAME.NAMESPACE.svc")
	configuration := flag.String("configuration", "greetings", "name of the webhook configurations")
	flag.Parse()
	ctrl.SetLogger(zap.New())
	if err := run(ctrl.SetupSignalHandler(), *dir, *host, *configuration); err != nil {
		fmt.Fprintln(os.Stderr, "operator:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dir, host, configuration string) error {
	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	if err := prepareCertificate(ctx, clientset, dir, host, configuration); err != nil {
		return err
	}
	scheme := runtime.NewScheme()
	addToScheme(scheme)
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return err
	}
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: scheme, HealthProbeBindAddress: ":8081", LeaderElection: true, LeaderElectionID: "greetings", LeaderElectionReleaseOnCancel: true,
		WebhookServer: webhook.NewServer(webhook.Options{CertDir: dir}),
	})
	if err != nil {
		return err
	}
	if err := ctrl.NewControllerManagedBy(manager).For(&Greeting{}).Owns(&corev1.ConfigMap{}).Complete(&reconciler{manager.GetClient()}); err != nil {
		return err
	}
	hook := greetingWebhook{}
	if err := ctrl.NewWebhookManagedBy(manager, &Greeting{}).WithDefaulter(hook).WithValidator(hook).Complete(); err != nil {
		return err
	}
	if err := manager.AddReadyzCheck("webhook", manager.GetWebhookServer().StartedChecker()); err != nil {
		return err
	}
	if err := manager.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return err
	}
	return manager.Start(ctx)
}

// reconciler keeps the ConfigMap of each Greeting.
type reconciler struct{ client client.Client }

// Reconcile implements reconcile.Reconciler.
func (r *reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	var greeting Greeting
	if err := r.client.Get(ctx, request.NamespacedName, &greeting); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	wanted := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: greeting.Namespace, Name: greeting.Name}}
	_, err := controllerutil.CreateOrUpdate(ctx, r.client, wanted, func() error {
		wanted.Data = map[string]string{"text": fmt.Sprintf("%s, %s!", greeting.Spec.Word, greeting.Spec.Who)}
		return controllerutil.SetControllerReference(&greeting, wanted, r.client.Scheme())
	})
	if err != nil {
		return ctrl.Result{}, err
	}
	if greeting.Status.ConfigMap == wanted.Name {
		return ctrl.Result{}, nil
	}
	greeting.Status.ConfigMap = wanted.Name
	return ctrl.Result{}, r.client.Status().Update(ctx, &greeting)
}
